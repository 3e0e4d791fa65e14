"""Speeds of nodes: kept when a job succeeds, given to the next one that asks for them."""

import httpx
import pytest

from app.api.deps import Parts
from app.launchers.base import Vanished
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.parallelism import GroupShape
from evaluator.contract.reports import PlanReady, Progress, RankTiming
from evaluator.contract.speeds import LengthSpeed, NodeSpeed
from tests.api.factories import submit
from tests.api.played import ENDED, Run, hello, launch, plan, progress
from tests.support.fake_python import DIGEST, made_up_result, plan_facts

PREDICTIVE = {"scheduling": "predictive"}


def measured(seq: int, rank: int, **seconds: float) -> Progress:
    """A report with speeds: of length 64 where `by_64` is given."""
    speeds = tuple(
        LengthSpeed(num_inputs=int(name.removeprefix("by_")), seconds_per_token=value)
        for name, value in seconds.items()
    )
    timing = RankTiming(rank=rank, local_rank=rank, node_rank=0, speeds=speeds)
    return Progress(rank=rank, seq=seq, stage="score", timing=timing)


def plan_of_model(seq: int) -> PlanReady:
    return PlanReady(rank=0, seq=seq, plan=plan_facts(), model_digest=DIGEST)


async def spec_of_next(client: httpx.AsyncClient, parts: Parts, **fields: object) -> LaunchSpec:
    job = await submit(client, launch={"device": "cpu", **fields})
    await launch(parts)
    path = parts.settings.runs_dir / job["id"] / "1" / "spec.json"
    return LaunchSpec.model_validate_json(path.read_bytes())


@pytest.fixture
async def run(parts: Parts, client: httpx.AsyncClient) -> Run:
    await submit(client, launch={"device": "cpu", "ranks_per_node": 2})
    return await launch(parts)


async def succeed(run: Run, *reports: Progress) -> None:
    await run.send(hello(), hello(rank=1), plan_of_model(2), progress(3, 0, 1, 2), *reports)
    await run.send(made_up_result(5, 0.6))
    await run.settler.settle(run.attempt_id, ENDED)


async def test_a_node_has_the_mean_of_its_ranks(
    run: Run, parts: Parts, client: httpx.AsyncClient
) -> None:
    await succeed(run, measured(4, 0, by_64=0.002, by_512=0.001), measured(2, 1, by_64=0.004))
    spec = await spec_of_next(client, parts, **PREDICTIVE)
    by_64 = LengthSpeed(num_inputs=64, seconds_per_token=0.003)
    by_512 = LengthSpeed(num_inputs=512, seconds_per_token=0.001)
    expected = NodeSpeed(host="here", model_digest=DIGEST, speeds=(by_64, by_512))
    assert spec.node_speeds == (expected,)


async def test_others_are_not_given_them(run: Run, parts: Parts, client: httpx.AsyncClient) -> None:
    await succeed(run, measured(4, 0, by_64=0.002))
    assert (await spec_of_next(client, parts)).node_speeds == ()
    other = await spec_of_next(client, parts, **PREDICTIVE, dtype="bfloat16")
    assert other.node_speeds == ()


async def test_scoring_groups_of_several_ranks_leave_none(
    run: Run, parts: Parts, client: httpx.AsyncClient
) -> None:
    plan = plan_of_model(2).model_copy(update={"group": GroupShape(tp=2)})
    reports = progress(3, 0, 1, 2), measured(4, 0, by_64=0.002)
    await run.send(hello(), hello(rank=1), plan, *reports)
    await run.send(made_up_result(5, 0.6))
    await run.settler.settle(run.attempt_id, ENDED)
    assert (await spec_of_next(client, parts, **PREDICTIVE)).node_speeds == ()


async def test_the_newest_figure_counts_and_a_failure_leaves_none(
    run: Run, parts: Parts, client: httpx.AsyncClient
) -> None:
    await succeed(run, measured(4, 0, by_64=0.002))
    for seconds, good in ((0.5, True), (0.7, False)):
        await submit(client, launch={"device": "cpu"}, limits={"attempts": 1})
        again = await launch(parts)
        if good:
            await succeed(again, measured(4, 0, by_64=seconds))
        else:
            await again.send(hello(), plan(2), measured(3, 0, by_64=seconds))
            await again.settler.settle(again.attempt_id, Vanished())
    (node,) = (await spec_of_next(client, parts, **PREDICTIVE)).node_speeds
    assert node.speeds == (LengthSpeed(num_inputs=64, seconds_per_token=0.5),)
