"""Owners of tasks: a task has a name, is kept while it runs, ends with its owner, and does not fail unseen."""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.tasks import OwnedTasks, TaskScope

pytestmark = pytest.mark.spec("H6")

WAIT_S = 60.0


def played(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await story()

    asyncio.run(bounded())


class Work:
    """Work that never returns by itself, and takes a while to end when it is cancelled."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.cancelled = 0
        self.over = False

    async def run(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            self.over = True
            raise


async def fail(wrong: BaseException) -> None:
    raise wrong


async def give(result: str) -> str:
    await turns(1)
    return result


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# --- of an object ---


def test_an_owned_task_has_its_name_and_gives_its_result() -> None:
    async def story() -> None:
        owned = OwnedTasks()
        task = owned.start("measure", give("done"))
        assert task.get_name() == "measure" and len(owned) == 1
        assert await task == "done"
        await turns()
        assert len(owned) == 0

    played(story)


def test_an_owned_task_is_kept_while_it_runs() -> None:
    async def story() -> None:
        owned, ended = OwnedTasks(), asyncio.Event()

        async def wait_for_what_only_the_task_knows() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        # Given a task that waits for something that nobody else knows of
        owned.start("wait", wait_for_what_only_the_task_knows())
        await turns()
        # Then a collection of garbage does not take it away in the middle of its work
        gc.collect()
        assert len(owned) == 1 and not ended.is_set()
        await owned.close()
        assert ended.is_set()

    played(story)


def test_an_exception_that_nobody_awaits_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        owned = OwnedTasks()
        owned.start("verify att_1", fail(ValueError("a bad page")))
        await turns()
        [record] = [record for record in caplog.records if record.name == "holdfast.tasks"]
        assert record.levelno == logging.ERROR and "verify att_1" in record.getMessage()
        assert record.exc_info is not None and str(record.exc_info[1]) == "a bad page"

    played(story)


def test_an_exception_is_handed_on_to_whoever_wants_it() -> None:
    async def story() -> None:
        heard: list[tuple[str, BaseException]] = []
        owned = OwnedTasks(lambda task, wrong: heard.append((task.get_name(), wrong)))
        wrong = ValueError("a bad page")
        owned.start("fails", fail(wrong))
        owned.start("returns", give("nothing"))
        await turns()
        # And a cancellation is no failure
        owned.start("runs on", asyncio.Event().wait())
        await owned.close()
        assert heard == [("fails", wrong)]

    played(story)


def test_an_exception_that_somebody_awaits_is_not_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        owned = OwnedTasks(failed=None)
        with pytest.raises(ValueError, match="a bad page"):
            await owned.start("fails", fail(ValueError("a bad page")))
        await owned.close()

    played(story)
    assert not caplog.records


def test_closing_cancels_every_task_once_and_waits_for_its_end() -> None:
    async def story() -> None:
        owned, works = OwnedTasks(), [Work(), Work()]
        for number, work in enumerate(works):
            owned.start(f"work {number}", work.run())
            await work.began.wait()
        # Given tasks that were cancelled already and are ending
        owned.cancel()
        await turns()
        # When their owner is closed, then it waits for them, and does not interrupt what they do in order to end
        closing = asyncio.create_task(owned.close())
        await turns()
        assert not closing.done() and [work.cancelled for work in works] == [1, 1]
        for work in works:
            work.may_end.set()
        await closing
        assert all(work.over for work in works) and len(owned) == 0

    played(story)


def test_closing_also_ends_what_is_started_meanwhile() -> None:
    async def story() -> None:
        owned, late = OwnedTasks(), asyncio.Event()

        async def last() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                late.set()

        async def first() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                owned.start("last", last())
                await turns()

        owned.start("first", first())
        await turns()
        await owned.close()
        assert late.is_set() and len(owned) == 0
        # And an owner that was closed can be used again
        assert await owned.start("again", give("done")) == "done"

    played(story)


# --- of a block ---


@pytest.mark.parametrize("ends", ["returns", "raises", "is cancelled"])
def test_the_end_of_a_block_cancels_its_tasks_and_waits_for_them(ends: str) -> None:
    async def story() -> None:
        work = Work()
        work.may_end.set()

        async def block() -> None:
            async with TaskScope() as tasks:
                assert tasks.start("work", work.run()).get_name() == "work"
                await work.began.wait()
                if ends == "raises":
                    raise ValueError("a bad page")
                if ends == "is cancelled":
                    await asyncio.Event().wait()

        whole = asyncio.create_task(block())
        await work.began.wait()
        if ends == "is cancelled":
            await turns()
            whole.cancel()
        await asyncio.wait({whole})
        assert work.over and work.cancelled == 1
        assert whole.cancelled() == (ends == "is cancelled")
        if ends == "raises":
            assert isinstance(whole.exception(), ValueError)

    played(story)


def test_tasks_that_a_block_cancels_itself_are_not_cancelled_again_at_its_end() -> None:
    async def story() -> None:
        work = Work()

        async def block() -> None:
            async with TaskScope() as tasks:
                tasks.start("work", work.run())
                await work.began.wait()
                tasks.cancel()
                # And what is started after that ends with the block as well
                tasks.start("late", asyncio.Event().wait())

        whole = asyncio.create_task(block())
        await work.began.wait()
        await turns()
        assert not whole.done() and work.cancelled == 1
        work.may_end.set()
        await whole
        assert work.over

    played(story)


def test_the_first_error_leaves_a_block_as_it_is_and_ends_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        work, wrong = Work(), ValueError("a bad page")
        work.may_end.set()

        async def block() -> None:
            async with TaskScope() as tasks:
                tasks.start("work", work.run())
                await work.began.wait()
                tasks.start("fails", fail(wrong))
                tasks.start("fails as well", fail(OSError("a bad disk")))
                await tasks.join()

        with pytest.raises(ValueError) as raised:
            await block()
        assert raised.value is wrong and work.over

    played(story)
    gc.collect()
    assert not caplog.records


def test_a_time_limit_around_a_block_that_failed_still_holds() -> None:
    """With asyncio.TaskGroup of Python 3.11 the limit would end in a CancelledError."""

    async def failing_block() -> None:
        async with TaskScope() as tasks:
            tasks.start("fails", fail(ValueError("a bad page")))
            await tasks.join()

    async def limited() -> None:
        async with asyncio.timeout(0.05):
            with pytest.raises(ValueError):
                await failing_block()
            await asyncio.Event().wait()

    async def story() -> None:
        with pytest.raises(TimeoutError):
            await limited()

    played(story)
