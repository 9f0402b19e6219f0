"""Keeps what a body prints: one file per stream, capped, with a running digest. Used by the shim only."""

import os
from hashlib import sha256

_NOTICE_BYTES = 128
_NOTICE_FROM_BYTES = 4_096
"""A log that may not even hold this gets no notice: it would be half of what is shown."""


class Capture:
    """One stream: the pipe the body writes to and the file it ends up in."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self.kept = 0
        self.cut = 0
        """Bytes read beyond the cap. They are dropped, so that a talkative body is never blocked by its log."""
        self.last_words = b""
        self._notice = b""
        if bytes_max >= _NOTICE_FROM_BYTES:
            self._notice = f"\n[holdfast: more than {bytes_max} bytes were printed; the rest is cut]\n".encode()
            bytes_max -= _NOTICE_BYTES
        self._max = bytes_max
        self._digest = sha256()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.pipe, self.body_end = os.pipe()
        os.set_blocking(self.pipe, False)

    def read(self) -> bool:
        """Take over what is in the pipe. False when the body's end is closed; OSError when the file takes no more.

        Bytes are digested as they reach the file: the digest is that of the file, whatever happens.
        """
        try:
            chunk = os.read(self.pipe, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
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
                self._max, self._notice = self.kept, b""  # room found later belongs to the shim's last word
                raise
            self._digest.update(keep[:written])
            self.kept += written
            keep = keep[written:]
        return True

    def drain(self) -> None:
        """Take over the rest, after everybody who could write to it is dead."""
        seen = -1
        while seen != self.kept + self.cut:
            seen = self.kept + self.cut
            self.read()

    def release_body_end(self) -> None:
        """The body has its own copy: only so does the pipe end with the body."""
        os.close(self.body_end)

    def sync(self) -> None:
        os.fsync(self._file)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()
