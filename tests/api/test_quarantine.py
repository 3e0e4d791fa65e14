"""What the audit takes out of a run is taken out of the ledger, in whatever order it is told."""

from collections.abc import Sequence

import httpx
import pytest

from app.api.deps import Parts
from app.jobs.ledger import load_rows, total
from app.launchers.base import Vanished
from evaluator.contract.audit import Author, Suspect, WindowInDispute
from evaluator.contract.reports import Quarantine, Report
from tests.api.factories import submit
from tests.api.played import ENDED, Run, hello, launch, plan, progress
from tests.support.fake_python import made_up_result

WRONG = 1e-9


@pytest.fixture
async def run(parts: Parts, client: httpx.AsyncClient) -> Run:
    await submit(client)
    return await launch(parts)


def quarantine(seq: int, rank: int, attempt: int = 1) -> Quarantine:
    suspect = Suspect(
        author=Author(attempt=attempt, rank=rank, node_rank=0, host="here"),
        reason="outvoted",
        window=WindowInDispute(document=0, begin=10, nll_nats=0.2 + WRONG, nll_nats_by_others=0.2),
        num_batches=2,
    )
    return Quarantine(rank=0, seq=seq, suspect=suspect)


# Rank 1 is wrong about batches 1 and 2; rank 0 says so, and ranks 0 and 2 score them again.
BEFORE: Sequence[Report] = (hello(), plan(2), hello(rank=1), hello(rank=2), progress(3, 0))
ITS_WORK = progress(2, 1, 2, rank=1, shift=WRONG)
VERDICT = quarantine(4, rank=1)
AGAIN_0 = progress(5, 1, round_=1)
AGAIN_2 = progress(2, 2, rank=2, round_=1)
ORDERS = {
    "as it happened": (ITS_WORK, VERDICT, AGAIN_0, AGAIN_2),
    "its work last": (VERDICT, AGAIN_0, AGAIN_2, ITS_WORK),
    "another rank first": (AGAIN_2, ITS_WORK, VERDICT, AGAIN_0),
    "verdict in between": (ITS_WORK, AGAIN_2, VERDICT, AGAIN_0),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("at_once", [True, False], ids=["one-request", "one-by-one"])
async def test_the_order_of_reports_does_not_matter(
    run: Run, order: Sequence[Report], at_once: bool
) -> None:
    await run.send(*BEFORE)
    if at_once:
        await run.send(*order)
    else:
        for report in order:
            await run.send(report)
    async with run.parts.database.read() as session:
        rows = await load_rows(session, run.job_id)
    assert total(rows) == (0.6, 30)
    assert [(row.batch, row.rank, row.round) for row in rows] == [(0, 0, 0), (1, 0, 1), (2, 2, 1)]
    record = await run.job()
    assert (record.job.num_batches_done, record.job.num_scored_tokens_done) == (3, 30)
    (event,) = await run.events("quarantine")
    assert (event.data["author"]["rank"], event.data["num_batches"]) == (1, 2)
    assert await run.events("audit") == []
    await run.send(made_up_result(6, 0.6))
    await run.settler.settle(run.attempt_id, ENDED)
    assert (await run.job()).job.state == "succeeded"


async def test_a_rank_that_only_its_spool_tells_of_is_quarantined_too(run: Run) -> None:
    spool = run.parts.settings.runs_dir / run.job_id / "1" / "spool"
    spool.mkdir()
    by_rank = {0: (hello(), plan(2), progress(3, 0), VERDICT), 1: (hello(rank=1), ITS_WORK)}
    for rank, reports in by_rank.items():
        lines = "".join(report.model_dump_json() + "\n" for report in reports)
        (spool / f"rank-0000{rank}.jsonl").write_text(lines)
    await run.settler.settle(run.attempt_id, Vanished())
    async with run.parts.database.read() as session:
        rows = await load_rows(session, run.job_id)
    assert [(row.batch, row.rank) for row in rows] == [(0, 0)]


async def test_an_attempt_that_takes_nothing_over_counts_and_the_difference_is_told(
    run: Run,
) -> None:
    await run.send(*BEFORE, ITS_WORK)
    await run.settler.settle(run.attempt_id, Vanished())
    second = await launch(run.parts)
    await second.send(hello(), plan(2), progress(3, 0, 1, 2), made_up_result(4, 0.6))
    findings = [event.data for event in await run.events("audit")]
    assert [(f["batch"], f["first_rank"], f["second_attempt"]) for f in findings] == [
        (1, 1, 2),
        (2, 1, 2),
    ]
    await second.settler.settle(second.attempt_id, ENDED)
    assert (await run.job()).job.state == "succeeded"


async def test_a_rank_that_contradicts_itself_in_a_later_round_is_told(run: Run) -> None:
    await run.send(*BEFORE, VERDICT, AGAIN_0, progress(6, 1, round_=1, shift=WRONG))
    assert len(await run.events("audit")) == 1


async def test_a_later_attempt_gets_nothing_of_a_wrong_rank(run: Run) -> None:
    await run.send(*BEFORE, ITS_WORK, VERDICT)
    await run.settler.settle(run.attempt_id, ENDED)
    second = await launch(run.parts)
    folder = run.parts.settings.runs_dir / run.job_id / "2"
    assert len((folder / "finished.jsonl").read_text().splitlines()) == 1
    # It finds that rank 0 of the first attempt was wrong as well.
    await second.send(hello(), plan(2), progress(3, 0, round_=1), quarantine(4, rank=0))
    await second.send(progress(5, 1, 2, round_=1))
    async with run.parts.database.read() as session:
        rows = await load_rows(session, run.job_id)
    assert [(row.batch, row.attempt, row.round) for row in rows] == [(n, 2, 1) for n in range(3)]
    assert (await run.job()).job.num_batches_done == 3
