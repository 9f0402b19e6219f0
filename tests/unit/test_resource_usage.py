"""Which measured use stops a body, and in which words its owner reads of it (SPEC N4, J7)."""

import pytest

from holdfast.model import FailureCode
from holdfast.node.core.order import Order
from holdfast.node.core.resource_usage import excess, words

pytestmark = pytest.mark.spec("N4", "J7")


def order(cpu_s: int = 0, **resources: int) -> Order:
    return Order("att_a.1", 1, "job_a", ("true",), 1, 1, 0, 0, resources=resources, limits={"cpu_s": cpu_s})


@pytest.mark.parametrize(
    ("asked", "used", "code"),
    [
        (order(), (10**9, 10**6, 10**6, 0), ""),
        (order(memory_mib=64), (0, 64, 0, 0), ""),
        (order(memory_mib=64), (0, 65, 0, 0), "oom_job"),
        (order(memory_mib=64), (0, 10, 0, 1), "oom_job"),
        (order(), (0, 10, 0, 1), "oom_job"),
        (order(disk_mib=10), (0, 0, 10, 0), ""),
        (order(disk_mib=10), (0, 0, 11, 0), "disk_quota"),
        (order(cpu_s=2), (1_999, 0, 0, 0), ""),
        (order(cpu_s=2), (2_000, 0, 0, 0), "time_limit"),
        (order(cpu_s=2, memory_mib=1, disk_mib=1), (5_000, 9, 9, 0), "oom_job"),
    ],
)
def test_use_beyond_a_limit_has_a_code_and_use_up_to_it_has_none(
    asked: Order, used: tuple[int, int, int, int], code: str
) -> None:
    assert excess(asked, *used) == code


@pytest.mark.parametrize("code", ["oom_job", "oom_node", "disk_quota", "node_disk_full", "time_limit"])
def test_every_limit_is_put_into_words_with_its_amount(code: str) -> None:
    said = words(order(cpu_s=7, memory_mib=64, disk_mib=32), code)
    assert FailureCode(code)
    assert said
    for amount, name in (("64 MiB", "oom_job"), ("32 MiB", "disk_quota"), ("7 s", "time_limit")):
        assert (amount in said) == (name == code)


def test_a_code_that_needs_none_has_no_words() -> None:
    assert words(order(), "runtime_fault") == ""
