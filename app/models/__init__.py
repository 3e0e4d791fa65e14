"""The tables. Times are aware and UTC; constraints have fixed names for the migrations."""

from app.models.base import DEFAULT_PROJECT, Base, OfProject, Sentence, UtcDateTime, Word
from app.models.gates import Baseline
from app.models.jobs import Attempt, Event, Job, JobLabel, LedgerRow, NodeSpeedRow, Rank
from app.models.statuses import CommitStatus, JobCommit
from app.models.tokens import Token
from app.models.webhooks import WebhookDelivery, WebhookEndpoint

__all__ = [
    "DEFAULT_PROJECT",
    "Attempt",
    "Base",
    "Baseline",
    "CommitStatus",
    "Event",
    "Job",
    "JobCommit",
    "JobLabel",
    "LedgerRow",
    "NodeSpeedRow",
    "OfProject",
    "Rank",
    "Sentence",
    "Token",
    "UtcDateTime",
    "WebhookDelivery",
    "WebhookEndpoint",
    "Word",
]
