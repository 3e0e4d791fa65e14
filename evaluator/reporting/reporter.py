"""Sends a rank's reports. A report is in the spool before it is posted, so none can be lost.

A thread follows the spool and posts what is new, in order; the run never waits for it. Memory does
not grow while the server is away, since the spool is the queue. Must not import torch.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.reports import Failure, Report, Result
from evaluator.errors import Superseded
from evaluator.reporting.spool import Lines, Spool

logger = logging.getLogger(__name__)

MAX_REPORTS = 1000
"""Of one POST; the contract's limit."""
MAX_BODY_BYTES = 1 << 20
"""Of one POST, unless a single report is larger."""
POST_TIMEOUT_S = 10.0
FIRST_RETRY_S = 0.2
LAST_RETRY_S = 5.0
RESULT_DEADLINE_S = 30.0
"""How long the end of a run waits for its result or failure to arrive."""
PROGRESS_DEADLINE_S = 5.0
"""How long it waits for anything else."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Destination:
    """Where reports go, and what proves that they may."""

    url: str
    token: str | None = None


class Answer(Enum):
    """What the server made of a POST."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """It will never take this body."""
    SUPERSEDED = "superseded"
    LATER = "later"
    """It can't take it now."""


def read_answer(status: int) -> Answer:
    """Meaning of an HTTP status."""
    if 200 <= status < 300:
        return Answer.ACCEPTED
    if status in (401, 409, 410):
        return Answer.SUPERSEDED
    if status in (400, 413, 422):
        return Answer.REFUSED
    return Answer.LATER


class Reporter:
    """Numbers, spools and posts the reports of one rank. One thread of the run uses it."""

    def __init__(self, spool_path: Path, rank: int, destination: Destination | None) -> None:
        self._spool = Spool(spool_path)
        self._rank = rank
        self._seq = self._spool.last_seq
        self._deadline_s = PROGRESS_DEADLINE_S
        self._courier: Courier | None = None
        if destination is not None:
            self._courier = Courier(self._spool, rank, destination)

    @property
    def next_seq(self) -> int:
        """Number for the next report."""
        return self._seq + 1

    def send(self, report: Report) -> None:
        """Spool the report and wake the courier; returns at once.

        Args:
            report: Of this rank, numbered with `next_seq`.
        """
        assert report.seq == self.next_seq, "reports are numbered without gaps"
        self._seq = report.seq
        last_word = isinstance(report, Result | Failure)
        if last_word:
            self._deadline_s = RESULT_DEADLINE_S
        self._spool.append(report.model_dump_json().encode(), sync=last_word)
        if self._courier is not None:
            self._courier.wake()

    def check(self) -> None:
        """Raise where the server no longer wants this attempt.

        Raises:
            Superseded: It said so.
        """
        if self._courier is not None and self._courier.superseded:
            raise Superseded

    def close(self, deadline_s: float | None = None) -> bool:
        """Wait until everything has arrived, or for the deadline.

        Returns:
            False where something is left to the spool.
        """
        self._spool.close()
        if self._courier is None:
            return True
        return self._courier.finish(self._deadline_s if deadline_s is None else deadline_s)


class Courier:
    """The thread that follows a spool."""

    def __init__(self, spool: Spool, rank: int, destination: Destination) -> None:
        self._spool = spool
        self._rank = rank
        self._destination = destination
        self._offset = spool.begin_offset
        self._news = threading.Event()
        self._finishing = threading.Event()
        self._abandoned = threading.Event()
        self._num_single = 0
        self.superseded = False
        """True once the server has said that the attempt is not the current one."""
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is news in the spool."""
        self._news.set()

    def finish(self, deadline_s: float) -> bool:
        """Deliver what is left, for at most `deadline_s`; True where all arrived."""
        self._finishing.set()
        self._news.set()
        self._thread.join(deadline_s)
        # A daemon: a POST that hangs on ends with the process.
        self._abandoned.set()
        if self._thread.is_alive():
            logger.warning("reports are left to the spool", extra={"path": str(self._spool.path)})
            return False
        return not self.superseded

    def _run(self) -> None:
        headers = {"Content-Type": "application/json"}
        if self._destination.token is not None:
            headers["Authorization"] = f"Bearer {self._destination.token}"
        host = urlsplit(self._destination.url).hostname
        # A proxy of the environment is never meant for this machine itself.
        with httpx.Client(
            headers=headers, timeout=POST_TIMEOUT_S, trust_env=host not in LOOPBACK
        ) as client:
            self._follow(lambda body: self._post(client, body))

    def _follow(self, post: Callable[[bytes], Answer]) -> None:
        retry_s = FIRST_RETRY_S
        while not self._abandoned.is_set():
            # Cleared before reading: news that comes in between is seen in the next round.
            self._news.clear()
            finishing = self._finishing.is_set()
            found = self._read()
            if not found.lines:
                if finishing:
                    return
                self._news.wait()
                continue
            answer = post(_body(found.lines))
            if answer is Answer.SUPERSEDED:
                self.superseded = True
                return
            if answer is Answer.LATER:
                # Ranks that lost the server together come back one after the other.
                self._abandoned.wait(retry_s * (1 + (self._rank % 16) / 16))
                retry_s = min(2 * retry_s, LAST_RETRY_S)
                continue
            retry_s = FIRST_RETRY_S
            self._advance(found, answer)

    def _read(self) -> Lines:
        return self._spool.read_from(
            self._offset,
            max_lines=1 if self._num_single else MAX_REPORTS,
            max_bytes=MAX_BODY_BYTES,
        )

    def _advance(self, found: Lines, answer: Answer) -> None:
        if answer is Answer.REFUSED and len(found.lines) > 1:
            # One by one from here, so that only what is wrong is left behind.
            self._num_single = len(found.lines)
            return
        if answer is Answer.REFUSED:
            logger.error("the server refused a report", extra={"line": found.lines[0][:500]})
        self._num_single = max(0, self._num_single - 1)
        self._offset = found.next_offset

    def _post(self, client: httpx.Client, body: bytes) -> Answer:
        begin = time.monotonic()
        try:
            response = client.post(self._destination.url, content=body)
        except httpx.HTTPError as error:
            logger.debug("a report did not arrive", extra={"error": repr(error)})
            return Answer.LATER
        answer = read_answer(response.status_code)
        if answer is not Answer.ACCEPTED:
            logger.warning(
                "the server did not accept reports",
                extra={
                    "status": response.status_code,
                    "answer": answer.value,
                    "post_s": round(time.monotonic() - begin, 3),
                },
            )
        return answer


def _body(lines: tuple[bytes, ...]) -> bytes:
    """A `ReportBatch` made of lines that are JSON already."""
    return b'{"contract_version":%d,"reports":[%s]}' % (CONTRACT_VERSION, b",".join(lines))
