"""The glossary explains words that are in use, each once, in order."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
ENTRIES_MIN = 35
WORDS_MAX = 80


@cache
def entries() -> dict[str, str]:
    """Each word of the glossary with its explanation, in the order of the page."""
    parts = re.split(r"^## (.+)$", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    words = parts[::2]
    assert len(words) == len(set(words)), "a word is explained twice"
    return dict(zip(words, parts[1::2], strict=True))


@cache
def texts() -> str:
    """All text in which a word of the glossary can be in use: sources and the other pages."""
    files = [*(ROOT / "src").rglob("*.py"), *(p for p in (ROOT / "docs").rglob("*.md") if p != GLOSSARY)]
    return "\n".join(path.read_text(encoding="utf-8") for path in files).lower()


def used(word: str) -> bool:
    """As a word of a sentence or as a part of a name: `failure domain`, `FAILURE_DOMAIN`; also in the plural."""
    parts = r"[\s_-]+".join(map(re.escape, word.split()))
    return re.search(rf"(?<![a-z]){parts}(?:s|d|ed)?(?![a-z])", texts()) is not None


def test_there_is_an_entry_for_every_important_word() -> None:
    assert len(entries()) >= ENTRIES_MIN


def test_entries_are_in_alphabetical_order() -> None:
    assert list(entries()) == sorted(entries())


def test_every_entry_is_in_use() -> None:
    assert [word for word in entries() if not used(word)] == []
    assert not used("flux capacitor")


def test_every_entry_is_short_and_links_to_the_page_that_explains_it() -> None:
    for word, explanation in entries().items():
        assert 0 < len(explanation.split()) <= WORDS_MAX, word
        assert re.search(r"\]\([\w./#-]+\)", explanation), f"{word} links to no page"
