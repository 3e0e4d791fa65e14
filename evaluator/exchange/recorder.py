"""A flight recorder: the last steps of a rank, for whoever asks why it does not move.

Must not import torch.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from evaluator.contract.reports import Step

KEPT_STEPS = 16
PUBLISH_PERIOD_S = 0.2
"""Steps may take microseconds; others need not know each of them."""


class Recorder:
    """Keeps the last steps of this rank, and shows others the newest one now and then."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._monotonic = monotonic
        self._steps: deque[Step] = deque(maxlen=KEPT_STEPS)
        self._published_at: float | None = None
        self.publish: Callable[[str], None] | None = None
        """Shows the other ranks a step; there is nobody to show it to before they can be reached.
        """

    def note(self, what: str, *, wait: bool = False) -> None:
        """A step begins: `score batch 17`. One in which the rank waits is shown at once."""
        step = Step(at=datetime.fromtimestamp(self._now(), UTC), what=what)
        self._steps.append(step)
        now = self._monotonic()
        due = self._published_at is None or now - self._published_at >= PUBLISH_PERIOD_S
        if self.publish is not None and (wait or due):
            self._published_at = now
            self.publish(say(step))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The last ones, oldest first."""
        return tuple(self._steps)


def say(step: Step) -> str:
    """A step in words."""
    return f"{step.what} at {step.at:%H:%M:%S}Z"
