"""What the SDK does, as steps: each question is written once, and both clients carry it out.

A question is a generator. It yields what has to be done and is handed what came of it; it opens no connection, reads no
clock and sleeps nowhere. `Transport.run` does the steps one after the other, `AsyncTransport.run` awaits them. So one
place says what is asked, when it is asked again, and what an answer means.

    def wait(job):                                  # a question
        while True:
            view = yield Ask(JobView, "GET", ...)   # all its retries inside; an error answer is raised here
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
    """One call with all its retries. `kind`: the type of the answer; None for no answer, bytes for a raw one."""

    kind: Any
    method: str
    path: str
    params: dict[str, Any] = {}
    body: Any = None
    headers: dict[str, str] = {}
    patience: Patience | None = None
    """For this call, in place of the usual one."""


class Send(msgspec.Struct, frozen=True):
    """One request over the wire. Comes back as an `Answer`; raises what the wire raises."""

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
    """How long it may become if nothing happens at all meanwhile; only a virtual clock can know that."""


class Now(msgspec.Struct, frozen=True):
    """Seconds on a clock that never runs back."""


class NewKey(msgspec.Struct, frozen=True):
    """An idempotency key that nobody used before."""


class Work(msgspec.Struct, frozen=True):
    """Something that may keep a disk busy for a while."""

    do: Callable[[], Any]


class Move(msgspec.Struct, frozen=True):
    """Content to be moved, many pieces at a time, over a transport made for that."""

    carry: "Callable[[AsyncTransport], Coroutine[Any, Any, Any]]"


class Together(msgspec.Struct, frozen=True):
    """Questions that do not depend on each other, some at a time. `heard` is told of each as it is answered, one at a
    time: its place, and its answer or the error that came instead."""

    questions: Sequence[Callable[[], Steps[Any]]]
    at_once: int
    heard: Callable[[int, Any], None]
