"""Arrays: one submit, many items, each retried by itself, one view of all. A real network."""

from collections.abc import Iterator

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing.processes import LocalNetwork, wait_for

pytestmark = pytest.mark.xdist_group("arrays")
SMALL = {"cpu_milli": 100, "memory_mib": 32, "disk_mib": 16}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("arrays")) as network:
        network.start_orchestrator(preset="lan")  # a machine that is held up for two seconds is not given up
        network.start_node("ant")
        yield network


@pytest.mark.spec("J16")
def test_each_item_becomes_a_job_and_all_of_them_one_view(network: LocalNetwork) -> None:
    client = network.client()
    command = ["sh", "-c", 'echo "$HOLDFAST_INDEX of $HOLDFAST_ITEMS: $HOLDFAST_ITEM = {}"; echo {} > made']
    array = client.arrays.submit(command, ["red", "green", "blue"], name="colours", **SMALL)
    assert array.items == 3 and array.id.startswith("arr_")

    ended = client.arrays.wait(array.id, timeout_s=120)

    assert ended.counts == {"succeeded": 3}
    printed = [
        "".join(line.text for line in client.jobs.logs(item.job, stream="stdout") if line.stream == "stdout")
        for item in ended.jobs
    ]
    assert printed == ["0 of 3: red = red\n", "1 of 3: green = green\n", "2 of 3: blue = blue\n"]
    assert all(item.manifest for item in ended.jobs), "each has its files"


@pytest.mark.spec("J16")
def test_only_the_items_that_failed_are_run_again(network: LocalNetwork) -> None:
    # given an array of which one item fails
    client = network.client()
    array = client.arrays.submit(["sh", "-c", "test {} != bad"], ["good", "bad", "fine"], **SMALL)
    first = client.arrays.wait(array.id, timeout_s=120)
    assert first.counts == {"failed": 1, "succeeded": 2}

    # when it is retried
    again = client.arrays.retry(array.id)

    # then that item has a new job, and the others the ones they had
    before, after = ({item.index: item.job for item in view.jobs} for view in (first, again))
    assert {index for index in before if before[index] != after[index]} == {1}
    assert client.arrays.wait(array.id, timeout_s=120).counts == {"failed": 1, "succeeded": 2}


@pytest.mark.spec("J16", "J12")
def test_an_array_is_stopped_as_one(network: LocalNetwork) -> None:
    client = network.client()
    array = client.arrays.submit(["sleep", "60"], [str(n) for n in range(5)], **SMALL)
    client.arrays.stop(array.id)
    assert client.arrays.wait(array.id, timeout_s=120).counts == {"cancelled": 5}
    wait_for(lambda: not network.nodes["ant"].bodies(), "nothing of it to run")


@pytest.mark.spec("J16")
def test_what_makes_no_array_is_refused(network: LocalNetwork) -> None:
    client = network.client()
    with pytest.raises(HoldfastError, match="1 to 10000 items"):
        client.arrays.submit(["true"], [], **SMALL)
    with pytest.raises(HoldfastError, match="no array"):
        client.arrays.get("arr_nothing")
