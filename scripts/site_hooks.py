"""Hooks of the documentation site: adds texts from elsewhere in the repository, and prevents external requests.

Links that lead out of docs/ work on a git host. On the site, links to a text become a page of the site, and links to a
source file become its name.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {
    "README.md": "about.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/train/README.md": "examples/train.md",
}
"""Text in the repository -> page of the site."""
WIDE = {"comparison.md"}
"""Pages with a table that needs the full width."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)")
REFERENCE = re.compile(r"^(\[[^\]]+\]: )(\S+)$", re.MULTILINE)
PICTURE = re.compile(r"(!\[[^\]]*\]\()([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Each link, rewritten for the page's location on the site."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["navigation", "toc"]
    origin = {there: here for here, there in ELSEWHERE.items()}
    source = origin.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def place(target: str) -> str | None:
        """The target on the site of a link within the repository, or None."""
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return target
        full = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = ELSEWHERE.get(full) or (full.removeprefix("docs/") if full.startswith("docs/") else None)
        if there is None:
            return None
        near = posixpath.relpath(there, posixpath.dirname(page.file.src_uri) or ".")
        return f"{near}#{anchor}" if anchor else near

    def linked(found: re.Match[str]) -> str:
        text, target = found.groups()
        there = place(target)
        return f"[{text}]({there})" if there else f"{text} (`{target.lstrip('./')}`)" if "`" not in text else text

    def shown(found: re.Match[str]) -> str:
        return f"{found[1]}{place(found[2]) or found[2]})"

    def referred(found: re.Match[str]) -> str:
        return f"{found[1]}{place(found[2]) or found[2]}"

    def placed(text: str) -> str:
        return REFERENCE.sub(referred, PICTURE.sub(shown, LINK.sub(linked, text)))

    pieces = re.split(r"(^```.*?^```|^~~~.*?^~~~)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if i % 2 else placed(piece) for i, piece in enumerate(pieces))


def on_post_build(config: Any) -> None:
    """Removes external addresses from the theme's scripts, which could load resources if a page used certain
    features."""
    foreign = re.compile(r"""(["'`])https?:/[/](?!www\.w3\.org)[^"'`]*\1""")
    for script in Path(config["site_dir"]).rglob("*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(foreign.sub(r"\1\1", text), encoding="utf-8")
    for source_map in Path(config["site_dir"]).rglob("*.map"):
        source_map.unlink()
