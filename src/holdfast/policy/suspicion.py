"""When silence becomes suspicious: a limit that adapts to the node's own rhythm, between two bounds."""

import msgspec


class Rhythm(msgspec.Struct, frozen=True, gc=False):
    """The intervals between messages of a node while it held work: smoothed gap and smoothed deviation, in ms."""

    gap_ms: int = 0
    deviation_ms: int = 0

    def heard(self, gap_ms: int) -> "Rhythm":
        """Exponential smoothing with the weights of TCP's round-trip estimator: 1/8 and 1/4."""
        if self.gap_ms == 0:
            return Rhythm(gap_ms, gap_ms // 2)
        off = gap_ms - self.gap_ms
        return Rhythm(self.gap_ms + off // 8, self.deviation_ms + (abs(off) - self.deviation_ms) // 4)


def silence_limit_ms(rhythm: Rhythm, keepalive_ms: int, floor_ms: int, ceiling_ms: int) -> int:
    """clamp(gap + 4·deviation + keepalive, floor, ceiling).

    A steady node is suspected at the floor; a jittery one gets more time, never more than the ceiling.
    """
    return max(floor_ms, min(ceiling_ms, rhythm.gap_ms + 4 * rhythm.deviation_ms + keepalive_ms))
