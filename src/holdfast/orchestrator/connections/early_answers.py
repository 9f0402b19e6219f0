"""Answers the requests of strangers that need neither a body nor a token, from their first bytes: no transport and no
parser is made for them. What it does not know is left to the application, which gives the same answers.

A flood of such requests then costs about as much as one of half-sent requests.
"""

from collections.abc import Callable, Mapping

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

END = b"\r\n\r\n"
NOT_PLAIN = (b"close", b"upgrade", b"expect", b"content-length", b"transfer-encoding")
"""Words in a head that is left to the application: what follows it is not a plain next request."""


class EarlyAnswer(msgspec.Struct, frozen=True):
    data: bytes
    closes: bool = False


Early = Callable[[bytes], EarlyAnswer | None]
"""The answer to a request with this head; None: it is left to the application."""


def no_answers(head: bytes) -> EarlyAnswer | None:
    return None


class EarlyAnswers:
    def __init__(self, health: Callable[[], tuple[int, bytes]], refusal: tuple[int, Mapping[str, str], bytes]) -> None:
        """`health`: status and JSON of `GET /healthz`. `refusal`: status, headers and JSON for a call of the API
        without a token."""
        self._health = health
        status, headers, body = refusal
        self._refusal = EarlyAnswer(http_answer(status, body, {**headers, "connection": "close"}), closes=True)

    def __call__(self, head: bytes) -> EarlyAnswer | None:
        line, _, headers = head.lower().partition(b"\r\n")
        alone = headers.find(END) == len(headers) - len(END)
        if line == b"get /healthz http/1.1" and alone and not any(word in headers for word in NOT_PLAIN):
            return EarlyAnswer(http_answer(*self._health(), {}))
        if line.endswith(b" http/1.1") and b" /v1/" in line and b"authorization" not in headers:
            return self._refusal
        return None


def http_answer(status: int, body: bytes, headers: Mapping[str, str]) -> bytes:
    told = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name.lower()}: {value}\r\n" for name, value in told.items())
    return STATUS_LINE[status] + lines.encode() + b"\r\n" + body
