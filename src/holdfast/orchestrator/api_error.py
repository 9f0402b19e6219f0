"""A refusal, as its caller is told of it. Its code is a row of `holdfast.codes`, which gives the HTTP status and the
hint of an error that brings none of its own. Knows nothing of HTTP frameworks.
"""

from collections.abc import Mapping

import msgspec

from holdfast import codes
from holdfast.wire.http import ErrorView, FailureView

RETRY_AFTER_S = 1
"""Where an error says "later" and not when."""


class ApiError(Exception):
    """What was asked for is not done: `code` says why to a program, `says` to a person, `hint` what to do."""

    retry_after_s: int | None = None

    def __init__(self, code: str, says: str, hint: str = "", failure: FailureView | None = None) -> None:
        super().__init__(says)
        self.code, self.says, self.hint, self.failure = code, says, hint, failure

    @property
    def view(self) -> ErrorView:
        """As it stands, for an answer that holds several."""
        return ErrorView(self.code, self.says, self.hint, self.failure)

    @property
    def told(self) -> ErrorView:
        """As an answer of its own: never without a hint."""
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


class Unavailable(ApiError):
    """Not now. Trying again is safe and will help."""

    def __init__(self, code: str, says: str, retry_after_s: int = RETRY_AFTER_S) -> None:
        super().__init__(code, says)
        self.retry_after_s = retry_after_s
