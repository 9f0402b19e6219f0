"""Owners of asyncio tasks: every task has a name and belongs to a block or to an object that ends it.

An event loop holds its tasks only weakly, so a task that nobody keeps may vanish in the middle of its work; and an
exception that nobody reads is reported when the task is collected, if ever. `TaskScope` owns the tasks of a block,
`OwnedTasks` those of an object. `in_own_thread` is for what blocks for long,
`until_passed` for what can be repeated. Knows nothing of what the tasks do.

Not `asyncio.TaskGroup`: it does not end a block at the first task that returns, it wraps errors that callers catch by
their class, and in Python 3.11 a group that fails leaves its parent marked as being cancelled. An
`asyncio.timeout` around it then raises CancelledError instead of TimeoutError, and the parent ends without a trace.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Self, TypeVar

from holdfast.passing import PATIENCE_S, raise_if_lasting

T = TypeVar("T")
P = ParamSpec("P")

AGAIN_S = 0.2
"""Between two tries of a step that failed with a passing error."""

log = logging.getLogger("holdfast.tasks")


def log_failure(task: "asyncio.Task[Any]", wrong: BaseException) -> None:
    log.error("the task %r failed", task.get_name(), exc_info=wrong)


def _cancel_once(tasks: "dict[asyncio.Task[Any], bool]") -> None:
    """A second cancellation would interrupt what a task does in order to end."""
    for task, cancelled in tasks.items():
        if not cancelled:
            tasks[task] = True
            task.cancel()


async def in_own_thread(chore: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run it in a thread of its own: a process that is stuck in the kernel, or a build of ten minutes, delays only its
    own attempt. In the shared thread pool it would soon block everything."""
    own = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(own, lambda: chore(*args, **kwargs))
    finally:
        own.shutdown(wait=False)


class TaskScope:
    """The tasks of one block: `async with TaskScope() as tasks`. When the block ends, in whichever way, those that
    still run are cancelled and awaited. The block reads their results; errors that it does not read are dropped,
    because they follow from the end of the block or came together with the error that ended it."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], bool] = {}
        """Whether it was cancelled."""

    def start(self, name: str, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(coroutine, name=name)
        self._tasks[task] = False
        return task

    async def join(self) -> None:
        """Wait until all tasks have ended. Raises the first error as it is; leaving the block then ends the others."""
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        """Cancel every task, before the end of the block does."""
        _cancel_once(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class OwnedTasks:
    """The tasks of one object, which closes them when it is closed itself. Each is kept until it ends."""

    def __init__(self, failed: Callable[["asyncio.Task[Any]", BaseException], None] | None = log_failure) -> None:
        """`failed` is called with each exception that ended a task. None: somebody awaits every task."""
        self._failed = failed
        self._tasks: dict[asyncio.Task[Any], bool] = {}
        """Whether it was cancelled."""

    def start(self, name: str, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.create_task(coroutine, name=name)
        self._tasks[task] = False
        task.add_done_callback(self._ended)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        del self._tasks[task]
        if self._failed is None or task.cancelled():
            return
        wrong = task.exception()
        if wrong is not None:
            self._failed(task, wrong)

    def cancel(self) -> None:
        """Cancel every task, without waiting for its end."""
        _cancel_once(self._tasks)

    async def close(self) -> None:
        """Cancel every task and wait until all have ended, also those that are started meanwhile."""
        while self._tasks:
            self.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


async def until_passed(step: Callable[[], Awaitable[T]]) -> T:
    """Take a step that can be repeated, again while it fails with a passing error. Raises the last one after
    `PATIENCE_S`."""
    waited_s = 0.0
    while True:
        try:
            return await step()
        except OSError as error:
            raise_if_lasting(error)
            if waited_s >= PATIENCE_S:
                raise
        await asyncio.sleep(AGAIN_S)
        waited_s += AGAIN_S
