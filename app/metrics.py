"""What the server counts about itself, for Prometheus.

Counters are of this process and begin at 0 with it. What the database knows (queue, slots,
messages) is read when somebody asks, so it is right after a restart and with several servers.
"""

from collections.abc import Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from app.db import Database
from app.jobs.repository import Move, utcnow
from app.models import Attempt, Job, WebhookDelivery
from app.notify.messages import DeliveryState
from app.settings import Settings
from evaluator.contract.states import JobState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus."""

_REQUEST_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_JOB_BUCKETS = (1.0, 5.0, 20.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)

_registry = CollectorRegistry()
REQUESTS = Counter(
    "assay_http_requests",
    "Requests answered, by method, route template and status.",
    ("method", "route", "status"),
    registry=_registry,
)
REQUEST_SECONDS = Histogram(
    "assay_http_request_duration_seconds",
    "From the first byte of a request to the end of its answer; streams last as long as they are "
    "watched.",
    ("method", "route"),
    buckets=_REQUEST_BUCKETS,
    registry=_registry,
)
REJECTED = Counter(
    "assay_http_requests_rejected",
    "Requests answered with a problem, by its code.",
    ("code",),
    registry=_registry,
)
REPORTS = Counter(
    "assay_reports", "Reports of runs that were taken in by HTTP.", registry=_registry
)
JOB_MOVES = Counter(
    "assay_job_moves",
    "Moves of jobs into a state; those into `starting` are launches.",
    ("state",),
    registry=_registry,
)
JOB_SECONDS = Histogram(
    "assay_job_duration_seconds",
    "Of jobs that ended: from submission to the first report (`waiting`), and from there to the "
    "end (`running`).",
    ("phase", "state"),
    buckets=_JOB_BUCKETS,
    registry=_registry,
)

TRIES = Counter(
    "assay_delivery_tries",
    "Tries to tell a webhook or a commit, by whether it was taken.",
    ("outcome",),
    registry=_registry,
)


def count_moves(moves: Iterable[Move]) -> None:
    """Count what has been committed."""
    for move in moves:
        state: JobState = move.data["state"]
        JOB_MOVES.labels(state.value).inc()
        if not state.is_terminal:
            continue
        job, ended_at = move.job, move.at
        first = job.started_at or ended_at
        JOB_SECONDS.labels("waiting", state.value).observe(_seconds(job.created_at, first))
        if job.started_at is not None:
            JOB_SECONDS.labels("running", state.value).observe(_seconds(first, ended_at))


async def scrape(database: Database, settings: Settings) -> bytes:
    """Return every figure in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_Read(await _read(database, settings)))
    return generate_latest(_registry) + generate_latest(registry)


class _Read(Collector):
    """Gauges that were read from the database."""

    def __init__(self, gauges: list[GaugeMetricFamily]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return them."""
        return self._gauges


async def _read(database: Database, settings: Settings) -> list[GaugeMetricFamily]:
    jobs = GaugeMetricFamily("assay_jobs", "Jobs that have not ended.", labels=("state", "device"))
    age = GaugeMetricFamily(
        "assay_queue_age_seconds", "Age of the job that has waited longest.", labels=("device",)
    )
    used = GaugeMetricFamily("assay_slots_used", "Slots that ranks take.", labels=("device",))
    slots = GaugeMetricFamily("assay_slots", "Slots of this server.", labels=("device",))
    pending = GaugeMetricFamily("assay_webhook_messages_pending", "Messages that are to be sent.")
    active = [state for state in JobState if not state.is_terminal]
    counted = (
        select(Job.state, Job.device, func.count(), func.min(Job.created_at))
        .where(Job.state.in_(active))
        .group_by(Job.state, Job.device)
    )
    in_slots = (
        select(Job.device, func.sum(Job.num_ranks))
        .join(Attempt, Attempt.job_id == Job.id)
        .where(Attempt.ended_at.is_(None))
        .group_by(Job.device)
    )
    waiting = select(func.count()).where(WebhookDelivery.state == DeliveryState.PENDING)
    async with database.read() as session:
        rows = (await session.execute(counted)).all()
        ranks = {device: int(count) for device, count in await session.execute(in_slots)}
        pending.add_metric((), await session.scalar(waiting) or 0)
    found = {(state, device): (count, oldest) for state, device, count, oldest in rows}
    for device in ("cpu", "cuda"):
        for state in active:
            jobs.add_metric((state.value, device), found.get((state, device), (0,))[0])
        queued = found.get((JobState.QUEUED, device))
        age.add_metric((device,), 0.0 if queued is None else _seconds(queued[1], utcnow()))
        used.add_metric((device,), ranks.get(device, 0))
        slots.add_metric((device,), settings.slots(device))
    return [jobs, age, used, slots, pending]


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds())
