"""What it costs to put a need on a node, in milliseconds, as a breakdown that sums to the total.

Today: waiting behind load, waste of what others may need more, and sharing a failure domain with another
attempt of the same job. Reputation, price, latency and stake join here as further terms.
"""

LOAD_MS = 1_000
"""A machine busy to the brim delays a job about this much more than an idle one."""
GPU_WASTE_MS = 4_000
"""A job without need of a GPU on a machine that has one."""
LEFTOVER_MS = 200
"""A machine filled unevenly: its idle processors are stranded when memory runs out, and the reverse."""
SPREAD_MS = 10_000
"""The same failure domain as another attempt of the same job."""
AVOID_MS = 60_000
"""An attempt of this job already failed there."""

ENOUGH_MS = LOAD_MS // 2
"""A machine that costs no more than this is taken without looking at another: one that is half idle delays nobody."""


def breakdown(
    cpu_free: int, cpu_total: int, memory_free: int, memory_total: int, load_permille: int,
    gpus_free: int, gpus_wanted: int, same_site: bool, avoided: bool,
) -> dict[str, int]:  # fmt: skip
    """The terms of the cost. Free amounts are those before the job is placed."""
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
    """The terms that are the same for every job, summed: load and leftover. They change only when the node does, so
    they are kept with it instead of being reckoned at every choice."""
    cpu_left = cpu_free * 1000 // (cpu_total or 1)
    uneven = cpu_left - memory_free * 1000 // (memory_total or 1)
    busy = 1000 - cpu_left
    if load_permille > busy:
        busy = load_permille
    return LOAD_MS * busy // 1000 + LEFTOVER_MS * (uneven if uneven > 0 else -uneven) // 1000


def placing_ms(gpus_free: int, gpus_wanted: int, same_site: bool, avoided: bool) -> int:
    """The terms that depend on the job, summed: waste, spread and avoid."""
    return (
        (GPU_WASTE_MS if gpus_free and not gpus_wanted else 0)
        + (SPREAD_MS if same_site else 0)
        + (AVOID_MS if avoided else 0)
    )
