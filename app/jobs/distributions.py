"""The two distributions that a comparison needs: binomial with 1/2, and Student's t. Pure."""

import math
from functools import lru_cache

_MANY_DEGREES = 1000
"""From here on the expansion around the normal distribution is exact to 1e-9."""
_FEW_COINS = 1000
"""Up to here the chance is computed in integers; beyond, by logarithms, to about 1e-9."""
_NORMAL_97_5 = 1.959963984540054


def sign_test(wins: int, losses: int) -> float | None:
    """Return the two-sided p-value of the sign test; None where every pair is a tie.

    The chance that of `wins + losses` fair coins at least as many as the larger of the two fall on
    one side, for either side.

    Source: W. J. Conover, Practical Nonparametric Statistics, 3rd ed. 1999, section 3.4.
    """
    num, fewer = wins + losses, min(wins, losses)
    if num == 0:
        return None
    if 2 * fewer == num:
        return 1.0
    # From the largest term of the tail downwards, each from the one before: few terms count.
    ratio, tail = 1.0, 1.0
    for k in range(fewer, 0, -1):
        ratio *= k / (num - k + 1)
        tail += ratio
        if ratio < tail * 1e-17:
            break
    return min(1.0, 2 * tail * _chance(num, fewer))


def _chance(num: int, heads: int) -> float:
    """Return the chance of so many heads of `num` fair coins."""
    if num <= _FEW_COINS:
        return math.comb(num, heads) / (1 << num)
    log_ways = math.lgamma(num + 1) - math.lgamma(heads + 1) - math.lgamma(num - heads + 1)
    return math.exp(log_ways - num * math.log(2))


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
