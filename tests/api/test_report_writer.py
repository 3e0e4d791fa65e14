"""What writing reports costs, in counters that do not depend on the machine."""

import asyncio
import socket

import httpx
import pytest
from sqlalchemy import event

from app.api.deps import Parts
from app.settings import Settings
from app.start import listen
from tests.api.factories import submit
from tests.api.played import Run, hello, launch, progress
from tests.support.server import free_port

MOST_STATEMENTS = 14
"""Of one transaction: token, locks, attempts, ranks, ledger, events, jobs; BEGIN not counted."""


@pytest.mark.parametrize("num_jobs", [1, 3])
async def test_the_statements_of_a_transaction_do_not_grow_with_its_posts(
    client: httpx.AsyncClient, parts: Parts, num_jobs: int
) -> None:
    runs: list[Run] = []
    for _ in range(num_jobs):
        await submit(client)
        runs.append(await launch(parts))
    num_ranks = 40
    await asyncio.gather(*(run.send(hello(r)) for run in runs for r in range(num_ranks)))
    commits, statements = [], []
    engine = parts.database.engine.sync_engine
    event.listen(engine, "commit", lambda _connection: commits.append(1))
    event.listen(
        engine, "before_cursor_execute", lambda _c, _cur, sql, *_rest: statements.append(sql)
    )
    await asyncio.gather(
        *(run.send(progress(2, r, rank=r)) for run in runs for r in range(num_ranks))
    )
    assert sum("INSERT INTO ledger" in sql for sql in statements) == len(commits)
    assert len(commits) <= 3  # not one for each of the posts
    assert len(statements) <= MOST_STATEMENTS * len(commits)
    for run in runs:
        assert (await run.job()).job.num_batches_done == num_ranks


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """asyncio switches Nagle's algorithm off only where a socket names its protocol."""
    with listen(Settings(port=free_port())) as sockets:
        assert {each.proto for each in sockets} == {socket.IPPROTO_TCP}
