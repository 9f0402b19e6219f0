"""How long to wait before the next try."""


def backoff_ms(failures: int, base_ms: int, max_ms: int, draw: int) -> int:
    """min(max, base · 2^(failures−1)), with a random upper half: enough delay without a thundering herd.

    `draw`: 64 random bits. Without a failure the wait is 0.
    """
    if failures <= 0:
        return 0
    whole = min(max_ms, base_ms << min(failures - 1, 30))
    half = whole // 2
    return whole - half + draw % (half + 1)
