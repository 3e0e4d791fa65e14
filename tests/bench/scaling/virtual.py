"""A virtual clock for code that blocks: each rank runs the evaluator's own code as a greenlet.

Whoever sleeps or waits gives way to the rank whose time comes next; no thread, no real time. Of two
ranks whose times are equal the one goes first that asked first, so a run is the same each time.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count

from greenlet import getcurrent, greenlet


class VirtualTime:
    """Seconds that pass only where somebody sleeps."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._end_s = math.inf
        self._events: list[tuple[float, int, greenlet]] = []
        self._due: dict[greenlet, int] = {}
        """The one event that counts of each rank; an older one of it is stale."""
        self._numbers = count()
        self._hub = getcurrent()

    def start(self, work: Callable[[], None]) -> None:
        """Have something run, from now on; an error in it ends `run`."""
        self.wake(greenlet(work, self._hub), self.now_s)

    def run(self, end_s: float = math.inf) -> bool:
        """Let time pass until all are done, or until `end_s`.

        Returns:
            True where all are done.
        """
        self._end_s = end_s
        while self._events:
            at_s, number, who = heapq.heappop(self._events)
            if self._due.get(who) != number:
                continue
            if at_s > end_s:
                self.now_s = end_s
                return False
            self.now_s = at_s
            del self._due[who]
            who.switch()
        return True

    def wake(self, who: greenlet, at_s: float) -> None:
        """Have somebody go on at a time, and at no other."""
        number = self._due[who] = next(self._numbers)
        heapq.heappush(self._events, (at_s, number, who))

    def sleep(self, seconds: float) -> None:
        """Go on after so many seconds."""
        self.sleep_until(self.now_s + seconds)

    def sleep_until(self, at_s: float) -> None:
        """Go on at a time; at once where it has passed and nobody else is due."""
        at_s = max(at_s, self.now_s)
        if at_s <= self._end_s and (not self._events or at_s < self._events[0][0]):
            self.now_s = at_s
            return
        self.wake(getcurrent(), at_s)
        self._hub.switch()

    def park(self, at_most_s: float = math.inf) -> None:
        """Wait until somebody wakes this rank, or for so long."""
        if at_most_s < math.inf:
            self.wake(getcurrent(), self.now_s + at_most_s)
        self._hub.switch()

    def monotonic(self) -> float:
        """For code that asks a clock."""
        return self.now_s
