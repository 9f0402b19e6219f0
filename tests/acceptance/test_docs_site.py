"""The documentation as a site: it builds without a warning, every link leads somewhere, and nothing is fetched."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = [pytest.mark.xdist_group("docs-site"), pytest.mark.timeout(330)]  # built once
ROOT = Path(__file__).resolve().parent.parent.parent
CITING = "comparison.html"
"""The one page that links to others' documentation: it cites it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """What a page links to, what it makes a browser fetch, and the places on it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link":
            self.fetched.append(given.get("href", ""))
        self.fetched += [given[name] for name in ("src", "srcset", "data", "poster") if given.get(name)]


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # The page for what is missing is served under any address, so its links are absolute.
    found = (path for path in sorted(site.rglob("*.html")) if path.name != "404.html")
    return {path: Page(path.read_text(encoding="utf-8")) for path in found}


@pytest.mark.spec("J3")
def test_every_link_leads_to_a_page_and_a_place_on_it(site: Path, pages: dict[Path, Page]) -> None:
    lost: list[str] = []
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            target = urlsplit(link)
            if target.scheme or link.startswith("data:"):
                continue
            there = (path.parent / unquote(target.path)).resolve() if target.path else path
            place = unquote(target.fragment)
            if not there.is_relative_to(site.resolve()) or not there.exists():
                lost.append(f"{path.relative_to(site)}: {link}")
            elif place and there.suffix == ".html" and place not in pages[there].places:
                lost.append(f"{path.relative_to(site)}: {link} (no such place)")
    assert not lost, "\n".join(sorted(set(lost)))
    assert len(pages) > 40


@pytest.mark.spec("J3")
def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    foreign = [
        f"{path.relative_to(site)}: {address}"
        for path, page in pages.items()
        for address in [*page.fetched, *([] if path.name == CITING else page.links)]
        if re.match(r"(https?:)?//", address)
    ]
    fetching = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//\S+")
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        foreign += [f"{path.relative_to(site)}: {one}" for one in fetching.findall(path.read_text(encoding="utf-8"))]
    for path in set(site.rglob("*.js")) - {site / "search" / "search_index.js"}:  # that is what pages say
        strings = re.findall(r"[\"'`](https?:/[/][^\"'`]*)", path.read_text(encoding="utf-8"))
        foreign += [f"{path.relative_to(site)}: {s}" for s in strings if "www.w3.org" not in s]
    assert not foreign, "\n".join(foreign)


@pytest.mark.spec("J3")
def test_every_page_can_be_found(site: Path, pages: dict[Path, Page]) -> None:
    """From the home page, by following links."""
    seen, todo = set[Path](), [site / "index.html"]
    while todo:
        path = todo.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        for link in pages[path].links:
            there = (path.parent / unquote(urlsplit(link).path)).resolve()
            if not urlsplit(link).scheme and there in pages:
                todo.append(there)
    assert not {p.relative_to(site) for p in pages} - {p.relative_to(site.resolve()) for p in seen}
    # and the search knows the words of a page
    assert "patience clock" in (site / "search" / "search_index.json").read_text(encoding="utf-8")


@pytest.mark.spec("J3")
def test_the_search_works_on_pages_that_were_opened_from_disk(site: Path) -> None:
    # A page from disk may neither fetch the words that are searched nor start the worker that searches: so the words
    # are a script, and each page loads, before all others, the one that runs a worker in a frame.
    words = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert words.startswith("var __index = {") and "patience clock" in words
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        scripts = re.findall(r'<script src="([^"]+)"', text)
        if path.name != "404.html":
            assert (path.parent / scripts[0]).resolve() == site.resolve() / "iframe-worker.js", path
    (bundle,) = (site / "assets" / "javascripts").glob("bundle.*.js")
    assert "search_index.js" in bundle.read_text(encoding="utf-8"), "the theme looks for the words elsewhere"
    assert "new Worker(" in bundle.read_text(encoding="utf-8"), "the theme searches in another way"
