"""Rules about the names of files, with the syntax of `.gitignore`: what is not sent. Knows names only."""

from collections.abc import Iterable

from pathspec import GitIgnoreSpec


class Ignore:
    """Decides whether a name is ignored. Lines that Git would not understand raise ValueError."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._spec = GitIgnoreSpec.from_lines(lines)

    def leaves_out(self, path: str, folder: bool) -> bool:
        return self._spec.match_file(path + "/" if folder else path)

    def enters(self, path: str) -> bool:
        """Whether an ignored folder is walked all the same, because something in it may not be ignored. Git never
        does."""
        return False
