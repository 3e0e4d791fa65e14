"""The sign test of a comparison. Pure."""

import math

_FEW_COINS = 1000
"""Up to here the chance is computed in integers; beyond, by logarithms, to about 1e-9."""


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
