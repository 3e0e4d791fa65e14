"""Takes reports in by HTTP: one writer, one transaction for all that arrived within 50 ms."""

import asyncio
import hmac
import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import Database
from app.errors import ApiError, AttemptNotCurrent, ContractMismatch, TokenInvalid
from app.ids import hash_token
from app.jobs.ingest import Absorber, Delivery
from app.jobs.repository import lock_attempts
from app.metrics import REPORTS
from app.models import Attempt
from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.reports import Report, ReportBatch

_log = logging.getLogger(__name__)

BATCH_SECONDS = 0.05
"""Least time from the begin of one transaction to that of the next; posts meanwhile gather."""
BATCH_POSTS = 500
"""Most posts of one transaction, so that none takes long."""


@dataclass(frozen=True)
class _Post:
    attempt_id: str
    token_hash: str
    reports: tuple[Report, ...]
    done: asyncio.Future[None]

    def resolve(self, error: Exception | None) -> None:
        """Answer whoever posted, if they still wait."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class ReportWriter:
    """Gathers posts, checks their tokens, and commits their reports in one transaction."""

    def __init__(self, database: Database, absorber: Absorber) -> None:
        """Take the database and what applies reports."""
        self._database = database
        self._absorber = absorber
        self._queue: asyncio.Queue[_Post] = asyncio.Queue(maxsize=10_000)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run(), name="report-writer")

    async def stop(self) -> None:
        """Write what has arrived, then end."""
        if self._task is None:
            return
        await self._queue.join()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def submit(self, token: str, attempt_id: str, batch: ReportBatch) -> None:
        """Take reports of an attempt; returns once they are committed.

        Raises:
            ContractMismatch: the evaluator speaks another version.
            TokenInvalid: no attempt has this id and this token.
            AttemptNotCurrent: the attempt has ended or was superseded.
        """
        if batch.contract_version != CONTRACT_VERSION:
            msg = f"the run speaks contract {batch.contract_version}, the server {CONTRACT_VERSION}"
            raise ContractMismatch(msg)
        done = asyncio.get_running_loop().create_future()
        await self._queue.put(_Post(attempt_id, hash_token(token), batch.reports, done))
        await done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            posts = [await self._queue.get()]
            await asyncio.sleep(next_at - loop.time())
            next_at = loop.time() + BATCH_SECONDS
            while len(posts) < BATCH_POSTS and not self._queue.empty():
                posts.append(self._queue.get_nowait())
            await self._write(posts)
            for _ in posts:
                self._queue.task_done()

    async def _write(self, posts: list[_Post]) -> None:
        """Commit all; if that fails, each attempt by itself, so that one can't spoil the rest."""
        try:
            await self._commit(posts)
        except Exception:  # noqa: BLE001 - an edge: the failure goes to those who wait for it
            _log.warning("report batch failed, trying each attempt alone", exc_info=True)
            for group in _by_attempt(posts).values():
                await self._commit_alone(group)

    async def _commit(self, posts: list[_Post]) -> None:
        """Write in one transaction what may be written, then tell each post what came of it."""
        async with self._database.write() as session:
            valid = await _with_right_token(session, posts)
            groups = _by_attempt(valid)
            deliveries = [
                Delivery(job, attempt, [r for post in groups[attempt.id] for r in post.reports])
                for job, attempt in await lock_attempts(session, groups)
            ]
            await self._absorber.absorb(session, deliveries)
        current = {each.attempt.id for each in deliveries if each.is_current}
        REPORTS.inc(sum(len(post.reports) for post in valid if post.attempt_id in current))
        for post in valid:
            post.resolve(None if post.attempt_id in current else _not_current())
        for post in posts:  # the rest
            post.resolve(_wrong_token())

    async def _commit_alone(self, posts: list[_Post]) -> None:
        try:
            await self._commit(posts)
        except Exception as error:  # noqa: BLE001 - an edge: told to the poster, who tries again
            if not isinstance(error, ApiError):
                extra = {"attempt_id": posts[0].attempt_id}
                _log.exception("reports could not be written", extra=extra)
            for post in posts:
                post.resolve(error)


def _by_attempt(posts: Iterable[_Post]) -> dict[str, list[_Post]]:
    groups: defaultdict[str, list[_Post]] = defaultdict(list)
    for post in posts:
        groups[post.attempt_id].append(post)
    return dict(groups)


async def _with_right_token(session: AsyncSession, posts: Iterable[_Post]) -> list[_Post]:
    """Return the posts that may speak for their attempt; before anything is locked for them."""
    query = select(Attempt.id, Attempt.token_hash).where(
        Attempt.id.in_({post.attempt_id for post in posts})
    )
    hashes = {row.id: row.token_hash for row in (await session.execute(query)).all()}
    return [
        post
        for post in posts
        if hmac.compare_digest(hashes.get(post.attempt_id, ""), post.token_hash)
    ]


def _wrong_token() -> ApiError:
    return TokenInvalid("the bearer token is not that of this attempt")


def _not_current() -> ApiError:
    return AttemptNotCurrent("this attempt has ended or another one has taken its place")
