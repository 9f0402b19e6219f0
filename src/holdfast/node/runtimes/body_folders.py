"""What a body has written, and whether it failed for want of room: its own, or the machine's. Knows no sandbox."""

import os
import time

from holdfast.node.core.warden import Order
from holdfast.node.runtimes import scratch

_REST = 20
"""Looking at every file takes at most one part in this of the shim's time."""


class Folders:
    """`work/` and, where asked for, `checkpoint/` of one attempt."""

    def __init__(self, order: Order, folder: str) -> None:
        self._folder = folder
        self._places = [os.path.join(folder, "work")] + (
            [os.path.join(folder, "checkpoint")] if order.checkpoint else []
        )
        self._own = scratch.is_own(folder)
        self._limit_mib = order.resources.get("disk_mib", 0)
        self._was_full = False
        self._measured = 0
        self._look_at = 0.0

    def used_mib(self) -> int:
        """Cheap: what is not counted by a file system of its own is looked at seldom, the more there is of it."""
        try:
            if self._own:
                self._was_full = scratch.is_full(self._places[0])
                # A file system cannot be made to the byte. What it gives beyond the limit is nobody's fault.
                return min(scratch.used_mib(self._places[0]), self._limit_mib)
            if self._limit_mib and (began := time.monotonic()) >= self._look_at:
                self._measured = scratch.measured_mib(*self._places)
                self._look_at = time.monotonic() + _REST * (time.monotonic() - began)
        except OSError:
            return 0
        return self._measured

    def lack(self) -> str:
        """For a body that failed: `disk_quota` where its own room was used up at its end or when it was last looked at,
        `node_disk_full` where the machine's was. Empty: there was room."""
        try:
            if self._own and (self._was_full or scratch.is_full(self._places[0])):
                return "disk_quota"
            return "node_disk_full" if scratch.is_full(self._folder) else ""
        except OSError:
            return ""
