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


TERMS = ("load", "leftover", "waste", "spread", "avoid")
"""The names of the terms: those of the node, then those of the job on it."""


def standing_terms(
    cpu_free: int, cpu_total: int, memory_free: int, memory_total: int, load_permille: int
) -> tuple[int, int]:
    """Load and leftover: the terms that are the same for every job. Free amounts are those before the placement."""
    cpu_left = cpu_free * 1000 // (cpu_total or 1)
    uneven = cpu_left - memory_free * 1000 // (memory_total or 1)
    busy = 1000 - cpu_left
    if load_permille > busy:
        busy = load_permille
    return LOAD_MS * busy // 1000, LEFTOVER_MS * (uneven if uneven > 0 else -uneven) // 1000


def placing_terms(gpus_free: int, gpus_wanted: int, same_site: bool, avoided: bool) -> tuple[int, int, int]:
    """Waste, spread and avoid: the terms that depend on the job."""
    return (
        GPU_WASTE_MS if gpus_free and not gpus_wanted else 0,
        SPREAD_MS if same_site else 0,
        AVOID_MS if avoided else 0,
    )


def standing_ms(cpu_free: int, cpu_total: int, memory_free: int, memory_total: int, load_permille: int) -> int:
    """The sum of the standing terms. They change only when the node changes, so the sum is stored with it instead of
    being computed for every placement."""
    load, leftover = standing_terms(cpu_free, cpu_total, memory_free, memory_total, load_permille)
    return load + leftover


def placing_ms(gpus_free: int, gpus_wanted: int, same_site: bool, avoided: bool) -> int:
    """The sum of the terms that depend on the job."""
    waste, spread, avoid = placing_terms(gpus_free, gpus_wanted, same_site, avoided)
    return waste + spread + avoid


def breakdown(standing: tuple[int, int], placing: tuple[int, int, int]) -> dict[str, int]:
    """All terms by name, in the order of `TERMS`."""
    return dict(zip(TERMS, (*standing, *placing), strict=True))
