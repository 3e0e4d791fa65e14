"""The run itself: set up, score, audit, collect."""

import logging
from pathlib import Path

from evaluator.assemble import make_auditor, make_share
from evaluator.audit.auditor import Auditor
from evaluator.collect import collect
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import Result
from evaluator.errors import LossNotFinite
from evaluator.exchange import process_group
from evaluator.exchange.ranks import RankInfo
from evaluator.model import device as devices
from evaluator.model.loading import silence_libraries
from evaluator.reporting.narrator import Narrator
from evaluator.reporting.timing import RankClock
from evaluator.run_context import RunContext
from evaluator.scheduling.schedule import Work
from evaluator.scoring.ledger import Ledger
from evaluator.scoring.share import Share
from evaluator.set_up import read_taken, set_up

logger = logging.getLogger(__name__)


def execute(
    spec: LaunchSpec, rank: RankInfo, clock: RankClock, narrator: Narrator, run_dir: Path
) -> Result | None:
    """Do all of a run, as one rank of it.

    Args:
        spec: What was asked for.
        rank: This one.
        clock: Where its time goes.
        narrator: What it tells.
        run_dir: Takes the artifacts.

    Returns:
        The result on rank 0, None elsewhere.

    Raises:
        EvaluatorError: The run can't go on.
    """
    narrator.enter("load")
    silence_libraries()
    device = devices.choose_device(spec.launch.device, rank.local_rank)
    devices.settle(spec.launch.threads_per_rank)
    if device.type == "cuda":
        clock.peak_memory_bytes = devices.peak_allocated_bytes
    with clock.measure("communicate"):
        peers = process_group.connect(rank, spec, narrator.recorder, narrator.tick)
    clock.traffic = peers.traffic.snapshot
    run = RunContext(
        spec=spec,
        rank=rank,
        clock=clock,
        narrator=narrator,
        run_dir=run_dir,
        peers=peers,
        device=device,
    )
    try:
        return _execute(run)
    finally:
        process_group.leave()


def _execute(run: RunContext) -> Result | None:
    setup = set_up(run)
    taken = read_taken(run, setup)
    ledger = run.narrator.ledger = Ledger(setup.text.plan)
    ledger.take_over(finished.entry for finished in taken)
    run.narrator.enter("score")
    share = make_share(run, setup)
    auditor = make_auditor(run, setup, share, taken)
    _score(run, share, auditor, ledger)
    run.narrator.enter("reduce")
    result = collect(run, setup, ledger, auditor, share.tokens)
    if result is not None:
        run.narrator.result(result)
    return result


def _score(run: RunContext, share: Share, auditor: Auditor, ledger: Ledger) -> None:
    """Score everything, and again what the audit does not trust."""
    indices, round_ = ledger.unfinished, 0
    while indices or round_ == 0:
        num_before = len(ledger.added)
        if share.group.number in auditor.healthy:
            _work(share, auditor, ledger, indices, round_)
        run.narrator.enter("audit")
        with run.clock.measure("wait"):
            run.peers.wait_for_all(f"scored/{round_}")
        num_suspects = len(auditor.suspects)
        with run.clock.measure("audit"):
            indices = auditor.look(ledger, ledger.added[num_before:])
        share.forget(indices)
        round_ += 1
        for suspect in auditor.suspects[num_suspects:]:
            logger.error("a rank was found to be wrong", extra=suspect.model_dump())
            if run.rank.rank == 0:
                run.narrator.quarantine(suspect)
        auditor.check_somebody_is_left()


def _work(share: Share, auditor: Auditor, ledger: Ledger, indices: list[int], round_: int) -> None:
    """Score a share. A rank whose weights have changed leaves it to the audit to say so."""
    try:
        share.work(Work.of(auditor.plan, indices), ledger, auditor.healthy, round_)
    except LossNotFinite as error:
        if not auditor.is_on or auditor.is_intact():
            raise
        logger.error("the weights in memory have changed", extra={"cause": error.message})
