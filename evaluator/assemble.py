"""Puts together what scores and what audits, for one rank."""

import os
import socket
from functools import partial

from evaluator import device as devices
from evaluator.auditing import Auditor, Member
from evaluator.contract.audit import Author
from evaluator.contract.reports import FinishedEntry
from evaluator.faults import with_fault
from evaluator.micro_batch import ElasticBudget, MicroBatches
from evaluator.model import digest_weights
from evaluator.run_context import RunContext
from evaluator.schedule import Schedule
from evaluator.score import Scorer
from evaluator.set_up import Setup
from evaluator.share import Share
from evaluator.speed import SharedSpeed, SpeedModel
from evaluator.versions import versions


def make_share(run: RunContext, setup: Setup) -> Share:
    """What scores this rank's part."""
    plain = Scorer(
        forward=setup.cut.forward,
        documents=setup.text.documents,
        prefix_token_id=setup.text.convention.prefix.token_id,
        device=run.device,
        dtype=run.spec.launch.dtype,
    )
    micro_batches = MicroBatches(
        scorer=with_fault(plain, setup.model.model, run.rank.rank, os.environ),
        budget=ElasticBudget(),
        free_memory=partial(devices.free_memory, run.device),
    )
    schedule = _schedule(run, setup.model_digest)
    run.clock.speeds = lambda: schedule.speed.measured
    run.clock.num_out_of_memory = lambda: micro_batches.budget.num_out_of_memory
    return Share(
        rank=run.rank,
        peers=run.peers,
        schedule=schedule,
        micro_batches=micro_batches,
        clock=run.clock,
        narrator=run.narrator,
        tokens={} if run.keeps_tokens else None,
    )


def _schedule(run: RunContext, model_digest: str) -> Schedule:
    me = socket.gethostname(), model_digest
    start = {(s.host, s.model_digest): s.speeds for s in run.spec.node_speeds}.get(me, ())
    return Schedule(
        scheduling=run.spec.launch.scheduling,
        rank=run.rank.rank,
        shared=SharedSpeed(run.peers.add_speed, run.rank.world_size),
        speed=SpeedModel(start),
    )


def make_auditor(
    run: RunContext, setup: Setup, share: Share, taken: list[FinishedEntry]
) -> Auditor:
    """What audits; all ranks call it together.

    Args:
        run: Of this rank.
        setup: What scores.
        share: Of this rank.
        taken: Entries of earlier attempts.
    """
    author = Author(
        attempt=run.spec.attempt,
        rank=run.rank.rank,
        node_rank=run.rank.node_rank,
        host=socket.gethostname(),
    )

    def moves() -> None:
        run.narrator.recorder.note("score a window again")
        run.narrator.tick()

    return Auditor(
        rank=run.rank.rank,
        peers=run.peers,
        plan=setup.text.plan,
        scorer=share.micro_batches.scorer,
        audit=run.spec.audit,
        dtype=run.spec.launch.dtype,
        device_type=run.device.type,
        members=run.peers.all_gather(Member(author, devices.processor(), versions()["python"])),
        taken=taken,
        is_intact=lambda: digest_weights(setup.model.model) == setup.weights_digest,
        moves=moves,
    )
