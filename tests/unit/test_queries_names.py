"""What a name means to an orchestrator: the newest to whoever reads, what has not ended to whoever acts on it."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from holdfast.model import ArrayId, Job, JobPhase
from holdfast.orchestrator.api.job_requests import no_item
from holdfast.orchestrator.api_error import ApiError
from holdfast.orchestrator.queries import Queries
from holdfast.state import Store
from holdfast.testing.store import a_job

pytestmark = pytest.mark.spec("J12", "J16")


@pytest.fixture
def store(sqlite_url: str) -> Iterator[Store]:
    store = Store.open(sqlite_url)
    yield store
    store.close()


def named(number: int, *, ended: bool = False, array: str = "") -> Job:
    job = a_job(number, name="train", phase=JobPhase.ENDED if ended else JobPhase.RUNNING)
    return msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, array=ArrayId(array), item=number))


def found(store: Store, *jobs: Job, live: bool) -> Job:
    store.commit(list(jobs), store.take_lead("here"))
    reading = Queries(store)
    try:
        return asyncio.run(reading.job("train", "ada", "ada", live=live))
    finally:
        reading.close()


def test_the_newest_is_read_and_what_has_not_ended_is_acted_on(store: Store) -> None:
    old, new = named(1), named(2, ended=True)
    assert found(store, old, new, live=False) == new
    assert found(store, live=True) == old


def test_what_has_ended_is_meant_where_all_of_it_has(store: Store) -> None:
    assert found(store, named(1, ended=True), new := named(2, ended=True), live=True) == new


@pytest.mark.parametrize("array", ["", "arr_1"])
def test_nobody_guesses_which_of_several_is_meant(store: Store, array: str) -> None:
    jobs = [named(1), named(2, array=array)]
    with pytest.raises(ApiError) as caught:
        found(store, *jobs, live=True)
    assert caught.value.code == "ambiguous"
    assert all(id in caught.value.says for id in (jobs[0].id, array or jobs[1].id))


def test_the_name_of_an_array_is_none_of_one_of_its_jobs(store: Store) -> None:
    item = found(store, named(1, array="arr_1"), named(2, array="arr_1"), live=True)

    assert item.spec.array == "arr_1"
    assert no_item(item.id, item) == item
    with pytest.raises(ApiError, match="arr_1"):
        no_item("train", item)


def test_an_item_that_has_ended_does_not_pass_for_an_array_that_goes_on(store: Store) -> None:
    goes_on, ended = named(1, array="arr_1"), named(2, array="arr_1", ended=True)
    item = found(store, goes_on, ended, live=True)

    assert item == goes_on
    with pytest.raises(ApiError, match="arr_1"):
        no_item("train", item)
