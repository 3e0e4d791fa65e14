"""Scoring groups of several ranks, as the server sees them."""

import httpx

from app.api.deps import Parts
from app.launchers.base import Vanished
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.parallelism import GroupShape
from evaluator.contract.reports import Failure
from evaluator.contract.states import FailureReason
from tests.api.factories import submit
from tests.api.played import Run, hello, launch, plan, progress

SHAPE = GroupShape(tp=2)


def spec_of(run: Run, attempt: int) -> LaunchSpec:
    path = run.parts.settings.runs_dir / run.job_id / str(attempt) / "spec.json"
    return LaunchSpec.model_validate_json(path.read_bytes())


async def test_the_next_attempt_knows_the_groups_and_that_memory_ran_out(
    parts: Parts, client: httpx.AsyncClient
) -> None:
    way = {"ranks_per_node": 2, "parallelism": {"tp": 2}}
    await submit(client, launch={"device": "cpu", **way}, limits={"attempts": 3})
    run = await launch(parts)
    first = spec_of(run, 1)
    assert (first.num_out_of_memory, first.finished_group) == (0, None)
    failure = Failure(rank=0, seq=4, reason=FailureReason.OUT_OF_MEMORY, message="no")
    with_group = plan(2).model_copy(update={"group": SHAPE})
    await run.send(hello(), hello(rank=1), with_group, progress(3, 0), failure)
    await run.settler.settle(run.attempt_id, Vanished())
    again = await launch(parts)
    second = spec_of(again, 2)
    assert (second.num_out_of_memory, second.finished_group) == (1, SHAPE)
