"""Statuses of commits, as a channel. One try of a status at a time, so that the order holds."""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, delete, exists, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.models import CommitStatus, JobCommit
from app.notify.channel import Channel, Room, Try
from app.notify.messages import DeliveryState
from app.notify.schedule import RETRY_AFTER_MAX_SECONDS, next_due
from app.notify.sender import Outcome
from app.settings import Settings
from app.statuses.forges import apis, is_taken, make_post, wait_s
from app.statuses.reporting import arm, note_sent, told_of
from app.statuses.target import Forge
from app.statuses.told import Told, is_news


@dataclass(frozen=True, kw_only=True)
class StatusTry(Try):
    """A status on its way; its lane is the forge."""

    told: Told


class StatusChannel(Channel[StatusTry]):
    """Rows of `commit_statuses`. Those of a forge without a token wait until there is one."""

    def __init__(self, settings: Settings) -> None:
        """Take the forges and their tokens, and the URL under which jobs are found."""
        self._apis = apis(settings)
        self._base_url = settings.base_url
        self._free_at: dict[str, datetime] = {}
        """By forge that has asked to wait: until when."""

    def due(self, now: datetime, room: Room) -> Select[*tuple[Any, ...]]:
        """Return the statement that finds statuses to send."""
        free = [
            forge
            for forge in self._apis
            if forge not in room.full and self._free_at.get(forge, now) <= now
        ]
        return (
            select(CommitStatus)
            .where(
                CommitStatus.state == DeliveryState.PENDING,
                CommitStatus.due_at <= now,
                CommitStatus.forge.in_(free),
            )
            .order_by(CommitStatus.due_at, CommitStatus.id)
            .limit(room.left)
        )

    async def begin(
        self, session: AsyncSession, now: datetime, lease: timedelta, room: Room
    ) -> list[StatusTry]:
        """Begin tries; a forge that has a state already is not sent it again."""
        locked = self.due(now, room).with_for_update(skip_locked=True)
        begun = []
        for (status,) in (await session.execute(locked)).all():
            if not is_news(status.forge, status.sent, status.wanted):
                status.end(DeliveryState.DELIVERED)
            elif status.tries_left == 0:
                status.end(DeliveryState.FAILED, "the server ended during the last try")
            elif room.take(status.forge):
                begun.append(self._begin_one(status, now, lease))
        return begun

    def _begin_one(self, status: CommitStatus, now: datetime, lease: timedelta) -> StatusTry:
        number = status.begin_try(now, lease)
        status.held_until = status.due_at
        post = make_post(
            status.forge,
            self._apis[status.forge],
            repository=status.repository,
            sha=status.sha,
            context=status.context,
            state=status.wanted,
            description=status.description,
            target_url=f"{self._base_url}/v1/jobs/{status.job_id}",
        )
        return StatusTry(
            id=status.id,
            number=number,
            lane=status.forge,
            url=post.url,
            headers=post.headers,
            body=post.body,
            told=told_of(status),
        )

    async def note(
        self, session: AsyncSession, begun: StatusTry, outcome: Outcome, now: datetime
    ) -> bool:
        """Write what came of a try; what is wanted may have changed meanwhile, and is due then."""
        status = await session.get(CommitStatus, begun.id, with_for_update=True)
        if status is None or status.num_tries != begun.number:
            return False
        status.note_answer(outcome)
        status.held_until = self._held_until(begun.lane, outcome, now)
        if is_taken(Forge(begun.lane), begun.told.state, outcome):
            note_sent(status, begun.told)
            if told_of(status) == begun.told:
                status.end(DeliveryState.DELIVERED)
            else:
                status.error = None
                arm(status, now)
        elif status.tries_left == 0:
            status.end(DeliveryState.FAILED, outcome.error)
        else:
            status.due_at = next_due(
                now,
                status.tries_left,  # all of them again, and so at once, if something else is wanted
                retry_after_s=wait_s(outcome),
                chance=random.random(),  # noqa: S311 - spreads load, no secret
            )
        return True

    def _held_until(self, lane: str, outcome: Outcome, now: datetime) -> datetime | None:
        """Return until when nothing may be sent; all of a forge waits if it has named a time."""
        asked_s = wait_s(outcome)
        if asked_s is None:
            return None
        until = now + timedelta(seconds=min(asked_s, RETRY_AFTER_MAX_SECONDS))
        if outcome.retry_after_s is not None:
            self._free_at[lane] = until
        return until

    async def sweep(self, session: AsyncSession, before: datetime) -> None:
        """Drop what was told before then of jobs that are gone."""
        old = (
            CommitStatus.state != DeliveryState.PENDING,
            CommitStatus.updated_at < before,
            ~exists().where(JobCommit.status_id == CommitStatus.id),
        )
        await session.execute(delete(CommitStatus).where(*old))
