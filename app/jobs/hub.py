"""Wakes those who wait for a job. In-process only: who waits must also look again by itself."""

import asyncio
from collections import defaultdict


class Hub:
    """One event per waiter, grouped by job."""

    def __init__(self) -> None:
        """Start with nobody waiting."""
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def notify(self, job_id: str) -> None:
        """Wake all who wait for this job."""
        for waiter in self._waiters.get(job_id, ()):
            waiter.set()

    async def wait(self, job_id: str, timeout_s: float) -> None:
        """Return when the job has changed, or after `timeout_s` seconds.

        A change between the caller's last look and this call is not seen: keep `timeout_s` short.
        """
        waiter = asyncio.Event()
        self._waiters[job_id].add(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter.wait()
        except TimeoutError:
            return
        finally:
            waiters = self._waiters[job_id]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[job_id]
