"""Captures what a body prints: one file per stream, capped, with a running digest. Used by the shim only."""

import os
from hashlib import sha256

from holdfast.passing import briefly, once_more

_NOTICE_BYTES = 128
_NOTICE_FROM_BYTES = 4_096
"""A log with a smaller cap gets no notice, because the notice would take up most of it."""


class StreamCapture:
    """One stream: the pipe that the body writes to, and the log file."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self.kept = 0
        self.cut = 0
        """Bytes read beyond the cap. They are dropped, so that a body with much output is never blocked by its log."""
        self.last_words = b""
        self._notice = b""
        if bytes_max >= _NOTICE_FROM_BYTES:
            self._notice = f"\n[holdfast: more than {bytes_max} bytes were printed; the rest is cut]\n".encode()
            bytes_max -= _NOTICE_BYTES
        self._max = bytes_max
        self._digest = sha256()
        # Not truncated: it may have reserved space.
        self._file = briefly(os.open, path, os.O_WRONLY | os.O_CREAT, 0o600)
        self.pipe, self.body_end = briefly(os.pipe)
        os.set_blocking(self.pipe, False)

    def read(self) -> bool:
        """Copy what is in the pipe to the file. Returns False once the body's end is closed. Raises OSError if the pipe
        cannot be read, or the file cannot be written.

        Bytes are digested when they reach the file, so the digest always matches the file.
        """
        chunk = self._chunk()
        if chunk:
            self._keep(chunk)
        return chunk != b""

    def _chunk(self) -> bytes | None:
        """What is in the pipe; None: nothing now."""
        try:
            return once_more(os.read, self.pipe, 1 << 16)
        except BlockingIOError:
            return None

    def _keep(self, chunk: bytes) -> None:
        self.last_words = (self.last_words + chunk)[-500:]
        keep = memoryview(chunk)[: max(0, self._max - self.kept)]
        self.cut += len(chunk) - len(keep)
        if self.cut and self._notice:
            keep, self._notice = memoryview(bytes(keep) + self._notice), b""
        while keep:
            try:
                written = os.write(self._file, keep)
            except OSError:
                self.cut += len(keep)
                self._max, self._notice = self.kept, b""  # space that is freed later is for the shim's final status
                raise
            self._digest.update(keep[:written])
            self.kept += written
            keep = keep[written:]

    def drain(self) -> None:
        """Copy the rest, after every process that could write to the pipe is dead."""
        while chunk := briefly(self._chunk):
            self._keep(chunk)

    def release_body_end(self) -> None:
        """Close our copy of the body's end, so that the pipe closes when the body ends."""
        os.close(self.body_end)

    def sync(self) -> None:
        os.fsync(self._file)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()
