"""The error that a refused request gets. Its code is a row of `holdfast.codes`, which gives the HTTP status, and the
hint if the error has none of its own. Knows nothing about HTTP frameworks.
"""

from collections.abc import Mapping

import msgspec

from holdfast import codes
from holdfast.identity.tokens import redacted
from holdfast.wire.errors import ErrorView, FailureView

RETRY_AFTER_S = 1
"""The `Retry-After` of an error that names no time, in seconds."""


class ApiError(Exception):
    """The request is refused. `code` is the reason for programs, `says` the reason for people, `hint` what to do."""

    retry_after_s: int | None = None

    def __init__(self, code: str, says: str, hint: str = "", failure: FailureView | None = None) -> None:
        # Errors quote what was sent, and somebody may have sent a token in the wrong place.
        says = redacted(says)
        super().__init__(says)
        self.code, self.says, self.hint, self.failure = code, says, hint, failure

    @property
    def view(self) -> ErrorView:
        """The error as it is, for an answer that holds several."""
        return ErrorView(self.code, self.says, self.hint, self.failure)

    @property
    def told(self) -> ErrorView:
        """The error as an answer of its own: always with a hint."""
        return self.view if self.hint else msgspec.structs.replace(self.view, hint=codes.what_to_do(self.code))

    @property
    def status(self) -> int:
        return codes.http_status(self.code)

    @property
    def headers(self) -> Mapping[str, str]:
        wait_s = self.retry_after_s
        if wait_s is None and self.status in (429, 503):
            wait_s = RETRY_AFTER_S
        return {} if wait_s is None else {"Retry-After": str(wait_s)}


class CursorExpired(ApiError):
    """A stream cannot be resumed: what follows the cursor is no longer kept."""

    code = "cursor_expired"

    def __init__(self, oldest: int) -> None:
        super().__init__(self.code, f"the journal after that cursor was deleted; the oldest cursor is {oldest}")
        self._oldest = oldest

    @property
    def view(self) -> ErrorView:
        return msgspec.structs.replace(super().view, oldest=self._oldest)


class Unavailable(ApiError):
    """The request cannot be served now. Trying again is safe and will help."""

    def __init__(self, code: str, says: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(code, says)
        self.retry_after_s = retry_after_s
