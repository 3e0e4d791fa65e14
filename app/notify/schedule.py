"""When a message is tried again. Pure."""

from datetime import datetime, timedelta

DELAYS_SECONDS = (0, 5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Before each try, after the end of the one before: all of them take a little over three days.

Source: the example schedule of Standard Webhooks 1.0.0.
"""
NUM_TRIES = len(DELAYS_SECONDS)
JITTER = 0.1
"""A delay is up to so much longer, as a share of itself, so that messages which failed together do
not all come back together."""
RETRY_AFTER_MAX_SECONDS = 86_400.0


def next_due(
    now: datetime, tries_left: int, *, retry_after_s: float | None, chance: float
) -> datetime:
    """Return the time of the next try.

    Args:
        now: when the last one ended.
        tries_left: at least 1.
        retry_after_s: what the receiver asked for; longer than a day counts as a day.
        chance: a random number in 0 to 1.
    """
    delay_s = DELAYS_SECONDS[NUM_TRIES - tries_left] * (1 + JITTER * chance)
    asked_s = min(retry_after_s or 0.0, RETRY_AFTER_MAX_SECONDS)
    return now + timedelta(seconds=max(delay_s, asked_s))
