"""Keyset paging: newest first, by (created_at, id); the cursor is opaque to clients."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Select, select, tuple_

from app.errors import InvalidCursor
from app.models import Job, JobLabel
from evaluator.contract.states import JobState

_JOB_ID = re.compile(r"job_[0-9a-z]{1,36}")


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """Which jobs to list; newest first."""

    states: tuple[JobState, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    limit: int = 50
    cursor: str | None = None


def page_query(query: JobQuery) -> Select[Job]:
    """Select one job more than the page holds, to see whether there is a next one.

    Raises:
        InvalidCursor: the cursor is broken or belongs to other filters.
    """
    statement = select(Job).order_by(Job.created_at.desc(), Job.id.desc()).limit(query.limit + 1)
    if query.states:
        statement = statement.where(Job.state.in_(query.states))
    if query.created_after is not None:
        statement = statement.where(Job.created_at > query.created_after)
    if query.created_before is not None:
        statement = statement.where(Job.created_at < query.created_before)
    for key, value in query.labels:
        known = select(JobLabel.job_id).where(JobLabel.key == key, JobLabel.value == value)
        statement = statement.where(Job.id.in_(known))
    if query.cursor is not None:
        # One comparison of pairs, which the index answers; of its parts it would answer none.
        statement = statement.where(tuple_(Job.created_at, Job.id) < _decode_cursor(query))
    return statement


def _filter_hash(query: JobQuery) -> str:
    filters = [
        sorted(query.states),
        sorted(query.labels),
        query.created_after and query.created_after.isoformat(),
        query.created_before and query.created_before.isoformat(),
    ]
    return hashlib.sha256(json.dumps(filters).encode()).hexdigest()[:12]


def encode_cursor(query: JobQuery, last: Job) -> str:
    """Return the cursor after `last`: its sort keys and a hash of the filters."""
    text = json.dumps([last.created_at.isoformat(), last.id, _filter_hash(query)])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode_cursor(query: JobQuery) -> tuple[datetime, str]:
    cursor = query.cursor or ""
    msg = "the cursor is broken or belongs to other filters: start again without one"
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        created_at, job_id, filters = json.loads(text)
        when = datetime.fromisoformat(created_at)
        if when.tzinfo is None or not _JOB_ID.fullmatch(job_id) or filters != _filter_hash(query):
            raise InvalidCursor(msg)
        return when.astimezone(UTC), job_id
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidCursor(msg) from error
