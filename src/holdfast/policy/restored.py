"""By how much numbers skip ahead when an orchestrator starts from a backup. Pure: the date is passed in.

    epoch, fence, entry    max(number + 2²⁰, seconds since 2020 · 2²⁰)
    attempt of a job       number + 1,000 · (1 + seconds since 2020 mod 997)

The first term is enough for one restore: a lost leader gave out fewer numbers since its backup. The second is for
restores of several backups, or of one backup again: each is higher than all that were made before it, whatever their
order, if the date is right. The numbers stay below 2⁵³ until 2290. Names of attempts need only differ, and are short.
"""

from typing import NamedTuple

SKIPPED = 1 << 20
"""More leaders, attempts and events than a network has between a backup and its use, and in any second."""
MADE_MAX = 1_000
"""Most attempts of a job in its life, however far they get: enough for weeks on machines that die every few hours."""
_FROM_S = 1_577_836_800
_UNTIL_S = 1 << 33
_SLOTS = 997


class NumberSkip(NamedTuple):
    by: int
    least: int
    attempts: int


def number_skip(date_s: int) -> NumberSkip:
    """`date_s`: now, by a wall clock. If that is wrong, the numbers are still new after one restore."""
    since_s = min(max(0, date_s - _FROM_S), _UNTIL_S)
    return NumberSkip(SKIPPED, since_s * SKIPPED, MADE_MAX * (1 + since_s % _SLOTS))
