"""Ranks that report over real connections, each at its own times, whatever the server does.

Open loop: a report has a time at which it is due, and its latency counts from then, so a server
that falls behind can't hide it by making the ranks wait.
"""

import asyncio
import random
from dataclasses import dataclass, field

from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.reports import Hello, LedgerEntry, Progress, RankTiming, ReportBatch

NUM_ENTRIES = 2
"""Finished batches in a report."""
NUM_WINDOWS = 2
"""Of a batch."""
ANSWER_S = 60.0


@dataclass(frozen=True)
class Target:
    """An attempt to report to."""

    port: int
    attempt_id: str
    token: str


@dataclass
class Tally:
    """What came of the reports."""

    latencies_s: list[float] = field(default_factory=list)
    """From the time a report was due to its answer."""
    num_refused: int = 0


class Rank(asyncio.Protocol):
    """One rank and its connection."""

    def __init__(self, target: Target, rank: int, first_batch: int) -> None:
        self._target = target
        self.rank = rank
        self._batch = first_batch
        self._random = random.Random(rank)
        self.seq = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._answer is not None, data
        if not self._answer.done():  # a refusal may come in several pieces
            self._answer.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(b"")

    def _report(self) -> Hello | Progress:
        self.seq += 1
        node, local = divmod(self.rank, 8)
        if self.seq == 1:
            return Hello(
                rank=self.rank, local_rank=local, node_rank=node, seq=1, world_size=1024,
                host=f"node-{node}", pid=1, device="cpu",
                versions={"python": "3.12.3", "torch": "2.13.0"},
            )  # fmt: skip
        return Progress(
            rank=self.rank,
            seq=self.seq,
            stage="score",
            timing=RankTiming(
                rank=self.rank, local_rank=local, node_rank=node,
                load_s=self._random.uniform(1, 9), tokenise_s=self._random.random(),
                compute_s=self.seq * self._random.random(), wall_s=self.seq + 7.5,
                num_batches=self.seq * NUM_ENTRIES, num_input_tokens=self.seq * 4096,
                num_scored_tokens=self.seq * 4000, peak_memory_bytes=1_234_567_890,
            ),
            entries=tuple(self._entry() for _ in range(NUM_ENTRIES)),
        )  # fmt: skip

    def _entry(self) -> LedgerEntry:
        self._batch += 1
        nll = tuple(self._random.uniform(1000, 4000) for _ in range(NUM_WINDOWS))
        return LedgerEntry(
            batch=self._batch - 1,
            nll_nats=nll,
            nll_squares=tuple(each * 3.3 for each in nll),
            num_scored=(1024,) * NUM_WINDOWS,
            nll_by_context=tuple(self._random.uniform(100, 4000) for _ in range(11)),
        )

    def next_request(self) -> bytes:
        """Return what the evaluator's client would send."""
        batch = ReportBatch(contract_version=CONTRACT_VERSION, reports=(self._report(),))
        body = batch.model_dump_json().encode()
        head = (
            f"POST /v1/attempts/{self._target.attempt_id}/reports HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{self._target.port}\r\nAccept: */*\r\n"
            "Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
            "User-Agent: python-httpx/0.28.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._target.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def post(self, request: bytes) -> bool:
        """Send a report; True where it was accepted."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, "127.0.0.1", self._target.port)
        assert self._transport is not None
        self._answer = loop.create_future()
        self._transport.write(request)
        async with asyncio.timeout(ANSWER_S):
            answer = await self._answer
        return answer.startswith(b"HTTP/1.1 204 ")

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()


async def close(ranks: list[Rank]) -> None:
    """End all connections, and let the loop see that they are."""
    for rank in ranks:
        rank.close()
    await asyncio.sleep(0)


async def report(ranks: list[Rank], *, rate: float, seconds: float) -> Tally:
    """Let all ranks together send `rate` reports a second, evenly spread, for `seconds`."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    period_s = len(ranks) / rate
    num_each = max(1, round(seconds / period_s))
    begin = loop.time() + 0.1

    async def play(place: int, rank: Rank) -> None:
        for turn in range(num_each):
            due = begin + (turn + place / len(ranks)) * period_s
            request = rank.next_request()
            await asyncio.sleep(due - loop.time())
            if await rank.post(request):
                tally.latencies_s.append(loop.time() - due)
            else:
                tally.num_refused += 1

    await asyncio.gather(*(play(place, rank) for place, rank in enumerate(ranks)))
    return tally
