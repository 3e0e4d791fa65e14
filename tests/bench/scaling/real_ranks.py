"""Real runs of 1 to 8 ranks on this machine, and where their time and bytes went."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from evaluator.contract.env import RANKS_PER_NODE
from evaluator.contract.reports import NodeTiming, Progress, RankTiming, Result
from tests.support.runs import Launched, launched, make_spec, read_spool
from tests.support.tiny import save_model, save_tokenizer, words

RANKS = (1, 2, 4, 8)
PER_NODE = 2
"""Ranks count as nodes of two, so that bytes between nodes show."""
LAYERS = 12
NUM_WORDS = 240_000
NUM_ROUNDS = 3
WINDOW = 128
SCORING = {"convention": "lm-eval", "window": WINDOW, "batch_tokens": 4 * WINDOW}


@dataclass(frozen=True, kw_only=True)
class RealRun:
    """A run and what its own reports say of it. Seconds of ranks are summed over ranks."""

    num_ranks: int
    wall_s: float
    """From the first lease to the result; what comes before counts nowhere here."""
    busy_s: float
    waiting_s: float
    communicating_s: float
    num_batches: int
    num_windows: int
    num_leases: int
    num_store: int
    bytes_inside: int
    num_between: int
    bytes_between: int


def at_begin(run_dir: Path, rank: int = 0) -> RankTiming:
    """Where a rank's time had gone when it was ready to score."""
    return next(
        report.timing
        for report in read_spool(run_dir, rank)
        if isinstance(report, Progress) and report.stage == "score"
    )


def timings_of(run: Launched) -> list[RankTiming]:
    """Of all ranks, by rank."""
    nodes = [report for report in run.reports() if isinstance(report, NodeTiming)]
    return sorted((t for node in nodes for t in node.ranks), key=lambda timing: timing.rank)


@contextmanager
def _nodes_of(ranks_per_node: int) -> Iterator[None]:
    os.environ[RANKS_PER_NODE] = str(ranks_per_node)
    try:
        yield
    finally:
        del os.environ[RANKS_PER_NODE]


def run_ranks(model: Path, folder: Path, num_ranks: int) -> RealRun:
    """Score a text with so many ranks; the audit is off, as in the simulation."""
    per_node = min(PER_NODE, num_ranks)
    spec = make_spec(
        model,
        [words(NUM_WORDS)],
        scoring=SCORING,
        audit={"share": 0},
        cache_dir=str(folder.parent / "cache"),
    )
    with _nodes_of(per_node), launched(spec, folder, num_ranks=num_ranks) as run:
        assert run.wait(600) == 0, run.output[-4000:]
        begins = [at_begin(run.run_dir, rank) for rank in range(num_ranks)]
        return _row(begins, timings_of(run), run.result())


def _row(begins: list[RankTiming], ends: list[RankTiming], result: Result) -> RealRun:
    traffic = result.traffic
    return RealRun(
        num_ranks=len(ends),
        wall_s=result.wall_s - begins[0].wall_s,
        busy_s=sum(end.compute_s for end in ends),
        waiting_s=sum(end.wait_s - begin.wait_s for begin, end in zip(begins, ends, strict=True)),
        communicating_s=sum(
            end.communicate_s - begin.communicate_s for begin, end in zip(begins, ends, strict=True)
        ),
        num_batches=result.plan.num_batches,
        num_windows=result.plan.num_windows,
        num_leases=sum(end.num_leases for end in ends),
        num_store=traffic.num_store,
        bytes_inside=traffic.bytes_inside,
        num_between=traffic.num_between,
        bytes_between=traffic.bytes_between,
    )


def measure_ranks(folder: Path) -> list[RealRun]:
    """The quickest of some runs for each number of ranks, in turn: others may be at work too."""
    model = folder / "model"
    save_model(model, layers=LAYERS)
    save_tokenizer(model)
    # The first one fills the cache of token ids.
    run_ranks(model, folder / "warm", 1)
    runs = [
        run_ranks(model, folder / f"{round_}-{num_ranks}", num_ranks)
        for round_ in range(NUM_ROUNDS)
        for num_ranks in RANKS
    ]
    return [
        min((run for run in runs if run.num_ranks == num_ranks), key=lambda run: run.wall_s)
        for num_ranks in RANKS
    ]
