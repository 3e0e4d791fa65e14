"""Puts together what scores and what audits, for one rank."""

import logging
import os
import socket
from functools import partial

from evaluator.audit.auditor import Auditor, Member
from evaluator.contract.audit import Author
from evaluator.contract.reports import FinishedEntry
from evaluator.model import device as devices
from evaluator.model.cost import work_of
from evaluator.model.loading import digest_weights
from evaluator.run_context import RunContext
from evaluator.scheduling.schedule import Schedule
from evaluator.scheduling.speed import SharedSpeed, SpeedModel
from evaluator.scoring.faults import with_fault
from evaluator.scoring.micro_batch import ElasticBudget, FixedBudget, MicroBatches
from evaluator.scoring.score import Scorer
from evaluator.scoring.share import Share
from evaluator.set_up import Setup
from evaluator.versions import versions

logger = logging.getLogger(__name__)


def make_share(run: RunContext, setup: Setup) -> Share:
    """What scores this rank's part."""
    plain = Scorer(
        forward=setup.cut.forward,
        documents=setup.text.documents,
        prefix_token_id=setup.text.convention.prefix.token_id,
        device=run.device,
        dtype=run.spec.launch.dtype,
        loss=setup.model.loss,
        cp=setup.group.cp,
    )
    num_before = run.spec.num_out_of_memory
    micro_batches = MicroBatches(
        scorer=with_fault(plain, setup.model.model, run.rank.rank, os.environ),
        budget=FixedBudget(num_before) if setup.group.has_several else ElasticBudget(),
        free_memory=partial(devices.free_memory, run.device),
    )
    schedule = _schedule(run, setup)
    if setup.group.leads:
        run.clock.work = lambda: work_of(plain.counter.kept, setup.cost)
    run.clock.speeds = lambda: schedule.speed.measured
    run.clock.num_out_of_memory = lambda: micro_batches.budget.num_out_of_memory
    return Share(
        rank=run.rank,
        peers=run.peers,
        schedule=schedule,
        micro_batches=micro_batches,
        clock=run.clock,
        narrator=run.narrator,
        counter=plain.counter,
        group=setup.group,
        tokens={} if run.keeps_tokens else None,
    )


def _schedule(run: RunContext, setup: Setup) -> Schedule:
    me = socket.gethostname(), setup.model_digest
    start = {(s.host, s.model_digest): s.speeds for s in run.spec.node_speeds}.get(me, ())
    return Schedule(
        scheduling=run.spec.launch.scheduling,
        group=setup.group.number,
        shared=SharedSpeed(run.peers.add_speed, setup.group.used.dp_replicate),
        # What single ranks were seen to do is no measure of several together.
        speed=SpeedModel(() if setup.group.has_several else start),
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

    def is_intact() -> bool:
        mine = digest_weights(setup.model.model) == setup.weights_digest
        if not mine:
            logger.error("the weights in memory of this rank have changed")
        return setup.group.all_say(yes=mine)

    return Auditor(
        group=setup.group,
        peers=run.peers,
        plan=setup.text.plan,
        scorer=share.micro_batches.scorer,
        audit=run.spec.audit,
        dtype=run.spec.launch.dtype,
        device_type=run.device.type,
        members=run.peers.all_gather(Member(author, devices.processor(), versions()["python"])),
        taken=taken,
        is_intact=is_intact,
        moves=moves,
    )
