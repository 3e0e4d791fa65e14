"""Who scored what, and what did not agree, in the result of a job."""

import httpx
import pytest
from sqlalchemy import update

from app.api.deps import Parts
from app.jobs.scored_by import MAX_FINDINGS
from app.launchers.base import Vanished
from app.models import LedgerRow
from evaluator.contract.reports import FinishedEntry
from evaluator.contract.states import JobState
from tests.api.factories import submit
from tests.api.played import (
    ENDED,
    Run,
    entry,
    hello,
    launch,
    plan,
    progress,
)
from tests.support.fake_python import made_up_result


@pytest.fixture
async def run(parts: Parts, client: httpx.AsyncClient) -> Run:
    await submit(client)
    return await launch(parts)


async def test_a_killed_attempt_and_the_next_one_add_up_to_the_plan(
    run: Run, client: httpx.AsyncClient
) -> None:
    await run.send(hello(), plan(2), progress(3, 0, 2))
    await run.settler.settle(run.attempt_id, Vanished())
    second = await launch(run.parts)
    elsewhere = hello(1).model_copy(update={"node_rank": 1, "host": "there"})
    await second.send(hello(), plan(2), elsewhere)
    await second.send(progress(2, 1, rank=1), made_up_result(3, 0.6))
    before = (await client.get(f"/v1/jobs/{run.job_id}")).json()
    assert before["result"] is None
    await second.settler.settle(second.attempt_id, ENDED)
    job = (await client.get(f"/v1/jobs/{run.job_id}")).json()
    assert job["state"] == JobState.SUCCEEDED
    shares = job["result"]["scored_by"]
    assert shares == [
        {"attempt": 1, "node_rank": 0, "host": "here", "num_batches": 2, "num_windows": 2,
         "num_scored_tokens": 20},
        {"attempt": 2, "node_rank": 1, "host": "there", "num_batches": 1, "num_windows": 1,
         "num_scored_tokens": 10},
    ]  # fmt: skip
    facts = job["result"]["plan"]
    for name in ("num_batches", "num_windows", "num_scored_tokens"):
        assert sum(share[name] for share in shares) == facts[name]
    audit = job["result"]["audit"]
    assert (audit["num_findings"], audit["findings"]) == (0, [])
    assert (await client.get(f"/v1/jobs/{run.job_id}/result")).json() == job["result"]


async def test_findings_are_counted_and_the_first_are_listed(
    run: Run, client: httpx.AsyncClient
) -> None:
    await run.send(hello(), hello(1), plan(2), progress(3, 0, 1, 2))
    num_findings = MAX_FINDINGS + 2
    await run.send(*(progress(2 + n, 1, rank=1, shift=1e-9) for n in range(num_findings)))
    await run.send(made_up_result(4, 0.6))
    await run.settler.settle(run.attempt_id, ENDED)
    audit = (await client.get(f"/v1/jobs/{run.job_id}/result")).json()["audit"]
    assert audit["num_findings"] == num_findings
    assert len(audit["findings"]) == MAX_FINDINGS
    assert audit["findings"][0] == {
        "batch": 1, "first_attempt": 1, "first_rank": 0, "second_attempt": 1, "second_rank": 1,
    }  # fmt: skip


async def test_a_batch_that_an_older_server_stored_is_scored_again(run: Run) -> None:
    await run.send(hello(), plan(2), progress(3, 0, 1))
    async with run.parts.database.write() as session:
        await session.execute(
            update(LedgerRow).where(LedgerRow.batch == 1).values(nll_squares=None)
        )
    await run.settler.settle(run.attempt_id, Vanished())
    second = await launch(run.parts)
    finished = run.parts.settings.runs_dir / run.job_id / "2" / "finished.jsonl"
    lines = finished.read_text().splitlines()
    assert [FinishedEntry.model_validate_json(line).entry for line in lines] == [entry(0)]
    await second.send(hello(), plan(2), progress(3, 1))
    assert (await run.job()).job.num_batches_done == 2
    assert await run.events("audit") == []
    async with run.parts.database.read() as session:
        row = await session.get_one(LedgerRow, (run.job_id, 1))
    assert row.nll_squares is not None
