"""A temporary folder for a test of the machine. If the process is killed meanwhile, the next test cleans up."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator

from holdfast.node import linux


@contextlib.contextmanager
def folder_for(what: str, clean: Callable[[str], None]) -> Iterator[str]:
    """For tests called `what`; `clean` removes what such a test may leave on the machine."""
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
