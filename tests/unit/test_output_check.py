"""Who is to blame if stored output is not the declared one."""

import pytest

from holdfast.orchestrator.logs.output_check import NOTHING, PrintedOutput, output_fault

DECLARED, OTHER, SHORT = PrintedOutput(3, "aa"), PrintedOutput(3, "bb"), PrintedOutput(2, "cc")


@pytest.mark.spec("H3", "J10")
@pytest.mark.parametrize(
    ("stored", "received", "damaged"),
    [
        # what is stored is right: whatever arrived before
        (DECLARED, DECLARED, None),
        (DECLARED, OTHER, None),
        (DECLARED, None, None),
        # it arrived as declared, and the disk changed it; or nobody knows what arrived
        (OTHER, DECLARED, True),
        (SHORT, DECLARED, True),
        (OTHER, None, True),
        # something else arrived
        (OTHER, OTHER, False),
        (SHORT, SHORT, False),
        (OTHER, SHORT, False),
        (NOTHING, NOTHING, False),
    ],
)
def test_a_node_answers_for_what_it_sent_and_not_for_the_disk_here(
    stored: PrintedOutput, received: PrintedOutput | None, damaged: bool | None
) -> None:
    fault = output_fault(DECLARED, stored, received)
    assert (None if fault is None else fault.damaged) is damaged


@pytest.mark.spec("J10")
def test_the_fault_says_what_differs() -> None:
    said = [output_fault(DECLARED, other, other) for other in (SHORT, OTHER)]
    assert [fault.detail for fault in said if fault is not None] == [
        "3 bytes of output were declared, 2 arrived",
        "the output that arrived is not the output that was declared: their hashes differ",
    ]
