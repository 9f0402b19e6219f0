"""The requests of the SDK as steps: each request is written once, and both clients run it.

A request is a generator. It yields what has to be done and receives the result; it does no I/O, reads no clock and
never sleeps. `Transport.run` performs the steps one after the other, `AsyncTransport.run` awaits them. So one place
defines what is requested, when it is repeated, and what a response means.

    def wait(job):                                  # a request
        while True:
            view = yield Ask(JobView, "GET", ...)   # including all retries; raises error responses
            if view.phase == "ended":
                return view
            yield Pause(0.5)
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.client.retry import Patience

if TYPE_CHECKING:
    from holdfast.client.async_transport import AsyncTransport

T = TypeVar("T")
Steps = Generator[Any, Any, T]


class Ask(msgspec.Struct, frozen=True):
    """One call with all its retries. `kind`: the type of the response; None for no content, bytes for a raw one."""

    kind: Any
    method: str
    path: str
    params: dict[str, Any] = {}
    body: Any = None
    headers: dict[str, str] = {}
    patience: Patience | None = None
    """For this call, in place of the default."""


class Send(msgspec.Struct, frozen=True):
    """One HTTP request. The result is an `Answer`; raises the errors of the transport."""

    method: str
    path: str
    params: dict[str, str]
    content: bytes | None
    headers: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    status: int
    content: bytes
    retry_after_s: float = 0.0


class Pause(msgspec.Struct, frozen=True):
    seconds: float
    idle_s: float | None = None
    """An upper bound for the pause if nothing else happens meanwhile; only a virtual clock can use it."""


class Now(msgspec.Struct, frozen=True):
    """Seconds on a monotonic clock."""


class NewKey(msgspec.Struct, frozen=True):
    """A new idempotency key."""


class Work(msgspec.Struct, frozen=True):
    """Work that may block on a disk for a while."""

    do: Callable[[], Any]


class MoveContent(msgspec.Struct, frozen=True):
    """A transfer of content, many pieces at a time, over a transport made for that."""

    carry: "Callable[[AsyncTransport], Coroutine[Any, Any, Any]]"


class Together(msgspec.Struct, frozen=True):
    """Requests that do not depend on each other, some at a time. `heard` is called for each as it completes, one at a
    time, with its index and its result or error."""

    questions: Sequence[Callable[[], Steps[Any]]]
    at_once: int
    heard: Callable[[int, Any], None]
