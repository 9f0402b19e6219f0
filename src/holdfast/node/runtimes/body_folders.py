"""Measures what a body has written, and whether it failed because its own disk space, or the machine's, ran out."""

import os
import time

from holdfast.node.core.order import Order
from holdfast.node.runtimes import child, scratch

_REST = 20
"""Counting every file takes at most this fraction of the shim's time."""


class Folders:
    """The folders of one attempt that its disk limit is for."""

    def __init__(self, order: Order, folder: str) -> None:
        self._folder = folder
        self._places = [os.path.join(folder, name) for name in child.folder_names(order)]
        self._own = scratch.is_own(folder)
        self._limit_mib = order.resources.get("disk_mib", 0)
        self._was_full = False
        self._measured = 0
        self._look_at = 0.0

    def used_mib(self) -> int:
        """Cheap: without a file system of its own, files are counted less often the more of them there are."""
        try:
            if self._own:
                self._was_full = scratch.is_full(self._places[0])
                # A file system cannot be sized to the byte. Space beyond the limit is not held against the body.
                return min(scratch.used_mib(self._places[0]), self._limit_mib)
            if self._limit_mib and (began := time.monotonic()) >= self._look_at:
                self._measured = scratch.measured_mib(*self._places)
                self._look_at = time.monotonic() + _REST * (time.monotonic() - began)
        except OSError:
            return 0
        return self._measured

    def lack(self) -> str:
        """For a body that failed: `disk_quota` if its own space was used up at its end or at the last check,
        `node_disk_full` if the machine's was. Empty: there was space."""
        try:
            if self._own and (self._was_full or scratch.is_full(self._places[0])):
                return "disk_quota"
            return "node_disk_full" if scratch.is_full(self._folder) else ""
        except OSError:
            return ""
