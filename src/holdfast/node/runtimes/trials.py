"""A folder to try something in. Where who tried is killed meanwhile, the next one who tries clears up after it."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator

from holdfast.node import linux


@contextlib.contextmanager
def folder_for(what: str, clean: Callable[[str], None]) -> Iterator[str]:
    """For trials called `what`; `clean` takes away what such a trial may leave on the machine."""
    base = tempfile.gettempdir()
    for name in os.listdir(base):
        found = re.fullmatch(rf"holdfast-{what}-(\d+)\.(\d+)-\w+", name)
        if found and not linux.is_alive(int(found[1]), int(found[2])):
            with contextlib.suppress(OSError):
                _take_away(os.path.join(base, name), clean)
    me = os.getpid()
    folder = tempfile.mkdtemp(prefix=f"holdfast-{what}-{me}.{linux.start_ticks(me)}-", dir=base)
    try:
        yield folder
    finally:
        _take_away(folder, clean)


def _take_away(folder: str, clean: Callable[[str], None]) -> None:
    if os.lstat(folder).st_uid == os.geteuid() and not os.path.islink(folder):
        clean(folder)
        shutil.rmtree(folder)
