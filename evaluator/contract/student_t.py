"""Student's t distribution: how far an interval reaches. Both sides take the same one. Pure."""

import math
from functools import lru_cache

_MANY_DEGREES = 1000
"""From here on the expansion around the normal distribution is exact to 1e-9."""
_NORMAL_97_5 = 1.959963984540054


@lru_cache(maxsize=256)
def student_t_97_5(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution.

    Args:
        degrees: of freedom, at least 1.

    Source: M. Abramowitz and I. Stegun, Handbook of Mathematical Functions 1964, 26.7.3 to 26.7.5.
    """
    if degrees > _MANY_DEGREES:
        z = _NORMAL_97_5
        first = (z**3 + z) / (4 * degrees)
        return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    low, high = 1.9, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        if _central_share(middle, degrees) < 0.95:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _central_share(t: float, degrees: int) -> float:
    """Return P(-t < T < t), by the finite series in the angle atan(t / sqrt(degrees))."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    is_odd = degrees % 2
    if degrees == 1:
        return 2 * angle / math.pi
    term = math.cos(angle) if is_odd else 1.0
    total = term
    for k in range(3 if is_odd else 2, degrees - 1, 2):
        term *= square * (k - 1) / k
        total += term
    total *= math.sin(angle)
    return 2 * (angle + total) / math.pi if is_odd else total
