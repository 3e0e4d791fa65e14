"""Reports, fencing and settlement against real databases."""

import asyncio
import contextlib
import json

import httpx
import pytest
from sqlalchemy import select

from app.api.deps import Parts
from app.errors import AttemptNotCurrent, TokenInvalid, TransitionNotAllowed
from app.jobs.ledger import load_rows, total
from app.jobs.repository import load_open_attempts
from app.launchers.base import Vanished
from app.models import Job, Rank
from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.audit import Author
from evaluator.contract.env import TOKEN_FILE
from evaluator.contract.reports import (
    Failure,
    FinishedEntry,
    PlanReady,
    Progress,
    ReportBatch,
    Stage,
)
from evaluator.contract.states import FailureReason, JobState
from tests.api.factories import submit
from tests.api.played import (
    ENDED,
    PaperLauncher,
    Run,
    entry,
    hello,
    launch,
    make_dispatcher,
    plan,
    progress,
)
from tests.support.fake_python import made_up_result, plan_facts


@pytest.fixture
async def run(parts: Parts, client: httpx.AsyncClient) -> Run:
    await submit(client)
    return await launch(parts)


async def test_a_run_that_goes_well(run: Run) -> None:
    await run.finish()
    assert (await run.job()).job.state is JobState.FINISHING
    await run.settler.settle(run.attempt_id, ENDED)
    job = (await run.job()).job
    assert job.state is JobState.SUCCEEDED
    states = [event.data["state"] for event in await run.events("state")]
    assert states == ["queued", "starting", "running", "finishing", "succeeded"]


async def test_a_repetition_changes_nothing(run: Run) -> None:
    await run.send(hello(), plan(2), progress(3, 0, 1))
    await run.send(hello(), plan(2), progress(3, 0, 1))
    await run.send(progress(3, 2))  # another one under a number that was used
    record = await run.job()
    assert record.job.num_batches_done == 2
    assert record.job.num_scored_tokens_done == 20
    assert record.ranks[0].last_seq == 3


async def test_a_gap_waits_for_the_spool(run: Run) -> None:
    await run.send(hello(), progress(3, 1))
    assert (await run.job()).job.num_batches_done == 0
    await run.send(progress(2, 0), progress(3, 1))
    assert (await run.job()).job.num_batches_done == 2


async def test_the_same_batch_with_other_numbers_is_a_finding_and_no_overwrite(run: Run) -> None:
    await run.send(hello(), hello(rank=1), progress(2, 0, 1))
    await run.send(progress(2, 1, rank=1, shift=1e-12))
    async with run.parts.database.read() as session:
        rows = await load_rows(session, run.job_id)
    assert total(rows) == (0.1 + 0.2, 20)
    (finding,) = await run.events("audit")
    assert finding.data == {
        "batch": 1,
        "first_attempt": 1,
        "first_rank": 0,
        "second_attempt": 1,
        "second_rank": 1,
    }


async def test_tokens_open_one_attempt_only(run: Run) -> None:
    batch = ReportBatch(contract_version=CONTRACT_VERSION, reports=(hello(),))
    for token, attempt_id in (("guess", run.attempt_id), (run.token, "att_other")):
        with pytest.raises(TokenInvalid):
            await run.parts.writer.submit(token, attempt_id, batch)


async def test_an_attempt_that_has_ended_is_not_heard(run: Run) -> None:
    await run.send(hello(), progress(2, 0))
    await run.settler.settle(run.attempt_id, Vanished())
    assert (await run.job()).job.state is JobState.QUEUED
    with pytest.raises(AttemptNotCurrent):
        await run.send(progress(3, 1))
    second = await launch(run.parts)
    assert second.attempt_id != run.attempt_id
    with pytest.raises(AttemptNotCurrent):
        await run.send(made_up_result(3, 0.6))
    await second.finish()
    job = (await run.job()).job
    assert (job.state, job.attempt, job.num_batches_done) == (JobState.FINISHING, 2, 3)


async def test_the_next_attempt_is_given_what_is_finished(run: Run) -> None:
    await run.send(hello(), plan(2), progress(3, 0, 2))
    await run.settler.settle(run.attempt_id, Vanished())
    second = await launch(run.parts)
    run_dir = run.parts.settings.runs_dir / run.job_id / "2"
    lines = (run_dir / "finished.jsonl").read_text().splitlines()
    author = Author(attempt=1, rank=0, node_rank=0, host="here")
    finished = [FinishedEntry.model_validate_json(line) for line in lines]
    assert finished == [FinishedEntry(author=author, entry=entry(n)) for n in (0, 2)]
    assert second.token != run.token


async def test_the_cause_outlives_what_follows_from_it(run: Run) -> None:
    await run.send(hello(), hello(rank=1))

    def failure(rank: int, reason: FailureReason) -> Failure:
        return Failure(rank=rank, seq=2, reason=reason, message=f"from rank {rank}")

    await run.send(failure(1, FailureReason.COMMUNICATION))
    await run.send(failure(0, FailureReason.DATA_EMPTY))
    await run.settler.settle(run.attempt_id, ENDED)
    job = (await run.job()).job
    assert (job.state, job.state_reason) == (JobState.FAILED, FailureReason.DATA_EMPTY)
    assert job.message == "rank 0: from rank 0"


async def test_a_thousand_reports_at_once_all_count(run: Run) -> None:
    num_ranks, num_each = 50, 20

    async def play(rank: int) -> None:
        await run.send(hello(rank))
        for seq in range(2, num_each + 2):
            await run.send(progress(seq, rank * num_each + seq - 2, rank=rank))

    await asyncio.gather(*(play(rank) for rank in range(num_ranks)))
    record = await run.job()
    assert record.job.num_batches_done == num_ranks * num_each
    assert {rank.last_seq for rank in record.ranks} == {num_each + 1}


@pytest.mark.parametrize("attempt", range(8))
async def test_cancel_and_the_end_at_once_give_one_terminal_state(run: Run, attempt: int) -> None:
    del attempt
    await run.finish()

    async def cancel() -> None:
        with contextlib.suppress(TransitionNotAllowed):
            await run.parts.jobs.cancel(run.job_id)

    await asyncio.gather(
        run.settler.settle(run.attempt_id, ENDED),
        cancel(),
        run.settler.settle(run.attempt_id, ENDED),
    )
    job = (await run.job()).job
    terminal = [event for event in await run.events("state") if event.data["is_terminal"]]
    assert [event.data["state"] for event in terminal] == [job.state]
    assert job.state in (JobState.SUCCEEDED, JobState.CANCELLED)
    assert (job.result is None) == (job.state is JobState.CANCELLED)


async def test_two_dispatchers_make_one_attempt(parts: Parts, client: httpx.AsyncClient) -> None:
    await submit(client)
    launchers = [PaperLauncher(), PaperLauncher()]
    turns = [make_dispatcher(parts, each).turn() for each in launchers]
    await asyncio.gather(*turns)
    assert sum(len(each.started) for each in launchers) == 1


async def test_a_model_that_is_gone_at_launch_fails_the_job(
    parts: Parts, client: httpx.AsyncClient
) -> None:
    job = await submit(client)
    (parts.settings.model_roots[0] / "tiny" / "config.json").unlink()
    launcher = PaperLauncher()
    await make_dispatcher(parts, launcher).turn()
    record = await parts.jobs.get(job["id"])
    assert record.job.state is JobState.FAILED
    assert "config.json" in (record.job.message or "")
    async with parts.database.read() as session:
        assert await load_open_attempts(session) == []


async def test_a_spool_that_was_cut_off_counts_up_to_the_cut(run: Run) -> None:
    spool = run.parts.settings.runs_dir / run.job_id / "1" / "spool"
    spool.mkdir()
    whole = [hello(), plan(2), progress(3, 0)]
    text = "".join(report.model_dump_json() + "\n" for report in whole)
    torn = progress(4, 1).model_dump_json()[:40]
    (spool / "rank-00000.jsonl").write_text(text + torn)
    await run.settler.settle(run.attempt_id, Vanished())
    record = await run.job()
    assert record.job.num_batches_done == 1
    assert record.job.state is JobState.QUEUED


async def test_ranks_keep_the_newest_timing(run: Run) -> None:
    await run.send(hello(), progress(2), progress(3))
    async with run.parts.database.read() as session:
        rank = (await session.scalars(select(Rank))).one()
    assert rank.timing is not None
    assert rank.timing["compute_s"] == 3


def test_the_token_is_readable_by_its_owner_alone(run: Run) -> None:
    path = run.parts.settings.runs_dir / run.job_id / "1" / TOKEN_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert run.token not in (path.parent / "spec.json").read_text()


async def test_another_model_is_told_and_what_is_finished_is_kept(run: Run) -> None:
    def planned(seq: int, digest: str) -> PlanReady:
        return PlanReady(rank=0, seq=seq, plan=plan_facts(), model_digest=f"sha256:{digest * 64}")

    await run.send(hello(), planned(2, "a"), progress(3, 0, 1))
    await run.settler.settle(run.attempt_id, Vanished())
    second = await launch(run.parts)
    spec = (run.parts.settings.runs_dir / run.job_id / "2" / "spec.json").read_text()
    assert "sha256:" + "a" * 64 in spec
    refusal = Failure(rank=0, seq=3, reason=FailureReason.PLAN_MISMATCH, message="another model")
    await second.send(hello(), planned(2, "b"), refusal)
    await second.settler.settle(second.attempt_id, ENDED)
    job = (await run.job()).job
    assert (job.state, job.state_reason) == (JobState.FAILED, FailureReason.PLAN_MISMATCH)
    assert (job.num_batches_done, job.model_digest) == (2, "sha256:" + "a" * 64)
    assert len(await run.events("plan_changed")) == 1
    await run.parts.jobs.retry(run.job_id)
    third = await launch(run.parts)
    await third.send(hello(), planned(2, "a"), progress(3, 2), made_up_result(4, 0.6))
    await third.settler.settle(third.attempt_id, ENDED)
    job = (await run.job()).job
    assert (job.state, job.num_batches_done) == (JobState.SUCCEEDED, 3)


async def test_the_stage_is_that_of_the_most_advanced_rank_until_all_is_scored(run: Run) -> None:
    def at(rank: int, seq: int, stage: Stage, *batches: int) -> Progress:
        return progress(seq, *batches, rank=rank).model_copy(update={"stage": stage})

    await run.send(hello(), hello(rank=1), plan(2))
    assert (await run.job()).job.stage is None
    await run.send(at(0, 3, "score", 0), at(1, 2, "warm_up"))
    assert (await run.job()).job.stage == "score"
    await run.send(at(0, 4, "reduce", 1))
    assert (await run.job()).job.stage == "score"
    await run.send(at(1, 3, "reduce", 2))
    assert (await run.job()).job.stage == "reduce"


@pytest.mark.parametrize("text", ["a \ud800 c", "\udfff"], ids=["high", "low"])
async def test_half_a_surrogate_pair_is_refused_before_anything_is_stored(
    client: httpx.AsyncClient, text: str
) -> None:
    body = json.dumps(
        {
            "model": {"kind": "folder", "path": "tiny"},
            "data": {"kind": "inline", "documents": ["fine", text]},
        }
    )
    answer = await client.post(
        "/v1/jobs", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert "half of a surrogate pair" in answer.text
    assert (await client.get("/v1/jobs")).json()["items"] == []


async def test_a_launch_that_can_not_be_prepared_ends_at_once(
    parts: Parts, client: httpx.AsyncClient
) -> None:
    job = await submit(client)
    async with parts.database.write() as session:
        stored = await session.get_one(Job, job["id"])
        stored.request = {**stored.request, "scoring": {"convention": "of a later version"}}
    launcher = PaperLauncher()
    await make_dispatcher(parts, launcher).turn()
    async with parts.database.read() as session:
        ended = await session.get_one(Job, job["id"])
        assert await load_open_attempts(session) == []
    assert (ended.state, ended.state_reason) == (JobState.FAILED, FailureReason.INTERNAL)
    assert "could not be prepared" in (ended.message or "")


async def test_a_path_that_leaves_the_roots_after_submit_is_not_tried_again(
    parts: Parts, client: httpx.AsyncClient
) -> None:
    job = await submit(client)
    text = parts.settings.data_roots[0] / "text.txt"
    text.unlink()
    text.symlink_to("/etc/passwd")
    launcher = PaperLauncher()
    await make_dispatcher(parts, launcher).turn()
    record = await parts.jobs.get(job["id"])
    assert (record.job.state, record.job.attempt) == (JobState.FAILED, 1)
    assert record.job.state_reason is FailureReason.DATA_NOT_FOUND
    assert "outside of the configured roots" in (record.job.message or "")
