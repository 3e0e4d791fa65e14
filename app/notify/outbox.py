"""Writes messages in the transaction that moves the job: both are committed, or neither is."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.ids import new_id
from app.jobs.repository import Move, moves_of
from app.models import WebhookDelivery, WebhookEndpoint
from app.notify.messages import DeliveryState, EventType, event_of, job_body
from app.notify.schedule import NUM_TRIES
from evaluator.contract.states import JobState


class Outbox:
    """Called with each writing session just before it commits."""

    def __init__(self, base_url: str) -> None:
        """Take the URL under which jobs are found."""
        self._base_url = base_url

    async def __call__(self, session: AsyncSession) -> None:
        """Add a delivery for each move of a job and each endpoint that wants to know of it."""
        told = [
            (move, event)
            for move in moves_of(session)
            if (event := event_of(move.data["state"])) is not None
        ]
        if not told:
            return
        endpoints = await _enabled(session, {move.job.project for move, _ in told})
        for move, event in told:
            wanting = [
                each
                for each in endpoints
                if each.project == move.job.project and event in each.events
            ]
            if wanting:
                body = self._body(move, event)
                session.add_all(
                    new_delivery(each, event, body, move.at, job_id=move.job.id) for each in wanting
                )

    def _body(self, move: Move, event: EventType) -> str:
        job = move.job
        result = job.result if move.data["state"] is JobState.SUCCEEDED else None
        return job_body(
            event,
            move.at,
            state_event=move.data,
            version=move.version,
            job_id=job.id,
            url=f"{self._base_url}/v1/jobs/{job.id}",
            perplexity=None if result is None else result["perplexity"],
        )


async def _enabled(session: AsyncSession, projects: set[str]) -> list[WebhookEndpoint]:
    """Return the endpoints to tell; none of them can be deleted before the commit."""
    query = (
        select(WebhookEndpoint)
        .where(WebhookEndpoint.project.in_(projects), WebhookEndpoint.disabled_reason.is_(None))
        .order_by(WebhookEndpoint.id)
        .with_for_update(read=True, key_share=True)
    )
    return list((await session.scalars(query)).all())


def new_delivery(
    endpoint: WebhookEndpoint, event: str, body: str, at: datetime, *, job_id: str | None
) -> WebhookDelivery:
    """Return a message to one endpoint that is due at once."""
    return WebhookDelivery(
        id=new_id("msg"),
        endpoint_id=endpoint.id,
        event=event,
        job_id=job_id,
        body=body,
        state=DeliveryState.PENDING,
        created_at=at,
        due_at=at,
        num_tries=0,
        tries_left=NUM_TRIES,
    )
