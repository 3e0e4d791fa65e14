"""Runs several specs in the same ranks, one after the other: starting processes is what costs.

Under torchrun: `many_runs.py FOLDER` runs each line of `FOLDER/specs.jsonl` in `FOLDER/<job id>`.
What a spec ends with, a result or a failure, is in its spool.
"""

import os
import sys
import time
from pathlib import Path

from evaluator.contract.launch import LaunchSpec
from evaluator.errors import EvaluatorError
from evaluator.ranks import RankInfo
from evaluator.session import Session


def main(folder: Path) -> None:
    """Run all of them; those that are refused must be refused on all ranks alike."""
    rank = RankInfo.from_env(os.environ)
    for line in (folder / "specs.jsonl").read_text().splitlines():
        spec = LaunchSpec.model_validate_json(line)
        session = Session(spec, rank, folder / spec.job_id, time.monotonic())
        try:
            session.run()
        except EvaluatorError as error:
            sys.stderr.write(f"{spec.job_id}: {error.message}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
