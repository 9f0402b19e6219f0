"""Random bits without a random source: the same counter always gives the same number."""

_MASK = (1 << 64) - 1


def mix(seed: int, counter: int) -> int:
    """64 well-mixed bits for (seed, counter): the finaliser of SplitMix64 over seed + counter·φ.

    Counter-based, so that a state only stores how many numbers were drawn.
    """
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
