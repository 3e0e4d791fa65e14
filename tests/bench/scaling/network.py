"""Store and links on a virtual clock: what takes the place of sockets, and nothing else."""

from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist
from greenlet import getcurrent, greenlet

from evaluator.exchange.collectives import Circle
from tests.bench.scaling.virtual import VirtualTime


@dataclass(frozen=True)
class Link:
    """Between two processes."""

    round_trip_s: float
    bytes_per_s: float

    @property
    def way_s(self) -> float:
        """One way, for something small."""
        return self.round_trip_s / 2


class VirtualStore(dist.Store):
    """The store as TCPStore is: one server, which serves one request after the other.

    Nobody sets a delay for a crowd: a request waits as long as those before it take.
    """

    def __init__(self, time: VirtualTime, link: Link, service_s: float) -> None:
        super().__init__()
        self._time, self._link, self._service_s = time, link, service_s
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[greenlet]] = {}
        self._free_s = 0.0
        self.num_requests = 0
        self.busy_s = 0.0
        self.longest_queue_s = 0.0
        """What the unluckiest request waited for others."""

    def add(self, key: str, amount: int) -> int:
        self._arrive()
        value = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(value).encode()
        self._answer()
        return value

    def set(self, key: str, value: str) -> None:
        self._arrive()
        self._values[key] = value.encode()
        for who in self._waiting.pop(key, []):
            self._serve()
            self._time.wake(who, self._free_s + self._link.way_s)
        self._answer()

    def get(self, key: str) -> bytes:
        self._arrive()
        self._answer()
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        self._arrive()
        self._answer()
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta = dist.default_pg_timeout) -> None:
        """For one key, the only use there is."""
        (key,) = keys
        self._arrive()
        if key in self._values:
            self._answer()
            return
        self._waiting.setdefault(key, []).append(getcurrent())
        self._time.park(timeout.total_seconds())
        if key not in self._values:
            self._waiting[key].remove(getcurrent())
            raise dist.DistStoreError(f"wait timeout: {key}")

    def _arrive(self) -> None:
        """Send a request, and wait until it is taken up."""
        self._time.sleep_until(self._time.now_s + self._link.way_s)
        self.num_requests += 1
        self._serve()

    def _serve(self) -> None:
        now_s = self._time.now_s
        self.longest_queue_s = max(self.longest_queue_s, self._free_s - now_s)
        self._free_s = max(self._free_s, now_s) + self._service_s
        self.busy_s += self._service_s

    def _answer(self) -> None:
        self._time.sleep_until(self._free_s + self._link.way_s)


@dataclass
class Meeting:
    """One gather of a circle; those who came, and what they brought."""

    payloads: dict[int, bytes] = field(default_factory=dict)
    waiting: dict[int, greenlet] = field(default_factory=dict)


@dataclass(frozen=True)
class VirtualCircle(Circle):
    """Gathers as `gather_object` over Gloo does: sizes go round, then all send to the leader.

    Each sends as many bytes as the longest payload has, and the leader's link takes one after the
    other. One object for all ranks of the circle.
    """

    time: VirtualTime
    link: Link
    loads_bytes_per_s: float
    """How fast the leader reads what has come."""
    meetings: list[Meeting] = field(default_factory=list)

    def gather(self, rank: int, payload: bytes) -> list[bytes] | None:
        if not self.meetings or len(self.meetings[-1].payloads) == len(self.ranks):
            self.meetings[:] = [Meeting()]
        meeting = self.meetings[-1]
        meeting.payloads[rank] = payload
        if len(meeting.payloads) < len(self.ranks):
            meeting.waiting[rank] = getcurrent()
            self.time.park()
        else:
            self._send_all(meeting, rank)
        if rank != self.leader:
            return None
        gathered = [meeting.payloads[each] for each in self.ranks]
        self.time.sleep(sum(map(len, gathered)) / self.loads_bytes_per_s)
        return gathered

    def _send_all(self, meeting: Meeting, last: int) -> None:
        """All have come: wake each when its part is sent, and the leader when all are there."""
        num_others = len(self.ranks) - 1
        longest_s = max(map(len, meeting.payloads.values())) / self.link.bytes_per_s
        begin_s = self.time.now_s + (num_others + 1) * self.link.way_s
        done_s = {each: begin_s + n * longest_s for n, each in enumerate(self.ranks)}
        done_s[self.leader] = begin_s + num_others * longest_s
        for each, who in meeting.waiting.items():
            self.time.wake(who, done_s[each])
        self.time.sleep_until(done_s[last])
