"""Runs several specs in the same ranks, one after the other: starting processes is what costs.

`many_runs.py FOLDER NUM_RANKS` runs each line of `FOLDER/specs.jsonl` in `FOLDER/<job id>`: a spec,
and a fault where one is ordered (`evaluator.scoring.faults`, or `<rank>:die`). Ranks are forked by
a warm agent, which has imported everything once. What a spec ends with, a result or a failure, is
in its spool.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from evaluator import __main__ as entry
from evaluator import warm
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.warm import WarmOrder
from evaluator.errors import EvaluatorError
from evaluator.exchange.ranks import RankInfo, die_with_launcher
from evaluator.planning.plan import Batch
from evaluator.reporting import narrator
from evaluator.scoring.faults import VARIABLE
from evaluator.scoring.score import Scorer, TokenNll
from evaluator.session import Session

BATCH_OF_DEATH = 3


def run_rank(arguments: list[str], *, started: float) -> int:
    """Run all specs; those that are refused must be refused on all ranks alike."""
    del started
    die_with_launcher()
    folder = Path(arguments[0])
    rank = RankInfo.from_env(os.environ)
    for line in (folder / "specs.jsonl").read_text().splitlines():
        order = json.loads(line)
        spec = LaunchSpec.model_validate(order["spec"])
        os.environ[VARIABLE] = order["fault"]
        if order["fault"] == f"{rank.rank}:die":
            die_in_third_batch()
        if order["fault"].endswith(":die"):
            # So that what others have finished by then is told.
            narrator.PROGRESS_PERIOD_S = 0.0
            del os.environ[VARIABLE]
        session = Session(spec, rank, folder / spec.job_id, time.monotonic())
        try:
            session.run()
        except EvaluatorError as error:
            sys.stderr.write(f"{spec.job_id}: {error.message}\n")
    return 0


def die_in_third_batch() -> None:
    """Have this process killed in the midst of its third batch."""
    whole, num_calls = Scorer.score, 0

    def score(scorer: Scorer, batch: Batch) -> list[TokenNll]:
        nonlocal num_calls
        num_calls += 1
        if num_calls == BATCH_OF_DEATH:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(scorer, batch)

    Scorer.score = score  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    # What a forked rank runs.
    entry.main = run_rank  # type: ignore[assignment]
    warm.import_ahead()
    order = WarmOrder(num_ranks=int(sys.argv[2]), spec_path=sys.argv[1], env={})
    entry.end(warm.launch(order))
