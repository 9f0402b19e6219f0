"""The cost of placing a job on a node, in milliseconds, as terms that sum to the total.

The terms: delay by load, waste of resources that others may need more, and sharing a failure domain with another
attempt of the same job. Reputation, price, latency and stake will be further terms.
"""

LOAD_MS = 1_000
"""A fully loaded machine delays a job by about this much more than an idle one."""
GPU_WASTE_MS = 4_000
"""A job that needs no GPU on a machine that has one."""
LEFTOVER_MS = 200
"""A machine filled unevenly: idle processors are useless once its memory is used up, and the reverse."""
SPREAD_MS = 10_000
"""The same failure domain as another attempt of the same job."""
AVOID_MS = 60_000
"""An attempt of this job has already failed there."""

ENOUGH_MS = LOAD_MS // 2
"""A machine that costs no more than this is chosen without comparing others: half idle is good enough."""


def breakdown(
    cpu_free: int, cpu_total: int, memory_free: int, memory_total: int, load_permille: int,
    gpus_free: int, gpus_wanted: int, same_site: bool, avoided: bool,
) -> dict[str, int]:  # fmt: skip
    """The terms of the cost. Free amounts are those before the placement."""
    cpu_left = cpu_free * 1000 // max(1, cpu_total)
    memory_left = memory_free * 1000 // max(1, memory_total)
    return {
        "load": LOAD_MS * max(load_permille, 1000 - cpu_left) // 1000,
        "leftover": LEFTOVER_MS * abs(cpu_left - memory_left) // 1000,
        "waste": GPU_WASTE_MS if gpus_free and not gpus_wanted else 0,
        "spread": SPREAD_MS if same_site else 0,
        "avoid": AVOID_MS if avoided else 0,
    }


def standing_ms(cpu_free: int, cpu_total: int, memory_free: int, memory_total: int, load_permille: int) -> int:
    """The sum of the terms that are the same for every job: load and leftover. They change only when the node changes,
    so they are stored with it instead of being computed for every placement."""
    cpu_left = cpu_free * 1000 // (cpu_total or 1)
    uneven = cpu_left - memory_free * 1000 // (memory_total or 1)
    busy = 1000 - cpu_left
    if load_permille > busy:
        busy = load_permille
    return LOAD_MS * busy // 1000 + LEFTOVER_MS * (uneven if uneven > 0 else -uneven) // 1000


def placing_ms(gpus_free: int, gpus_wanted: int, same_site: bool, avoided: bool) -> int:
    """The sum of the terms that depend on the job: waste, spread and avoid."""
    return (
        (GPU_WASTE_MS if gpus_free and not gpus_wanted else 0)
        + (SPREAD_MS if same_site else 0)
        + (AVOID_MS if avoided else 0)
    )
