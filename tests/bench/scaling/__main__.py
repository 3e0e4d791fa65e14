"""`make scaling`: measure, simulate, and write tables and plots of docs/scaling.md anew."""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench.machine import ROOT, describe
from tests.bench.scaling.costs import Measured, measure_costs
from tests.bench.scaling.page import write_page
from tests.bench.scaling.real_ranks import RealRun, measure_ranks
from tests.bench.scaling.sweep import LARGEST, Row, sweep

FOLDER = ROOT / "docs" / "scaling"
MEASURED = FOLDER / "measured.json"
SIMULATED = FOLDER / "simulated.json"
BAR = 0.98
"""Of the ideal, that the best scheduling must reach at the largest size."""


def measure() -> None:
    """Measure this machine; takes minutes."""
    with tempfile.TemporaryDirectory() as folder:
        costs = measure_costs(Path(folder) / "costs")
        ranks = measure_ranks(Path(folder) / "ranks")
    record = {
        "machine": describe("torch", "transformers"),
        "costs": costs.model_dump(),
        "ranks": [asdict(run) for run in ranks],
    }
    _write(MEASURED, record)


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def main() -> int:
    """Do what was asked.

    Returns:
        0 where the bar is reached.
    """
    parser = argparse.ArgumentParser(prog="make scaling", description=__doc__)
    parser.add_argument("--keep-measured", action="store_true", help="take measured.json as it is")
    parser.add_argument("--keep-simulated", action="store_true", help="take simulated.json as well")
    parser.add_argument("--measure-only", action="store_true", help="write measured.json, no more")
    arguments = parser.parse_args()
    if not arguments.keep_measured and not arguments.keep_simulated:
        measure()
    if arguments.measure_only:
        return 0
    measured = _read(MEASURED)
    costs = Measured.model_validate(measured["costs"])
    if not arguments.keep_simulated:
        _write(SIMULATED, [asdict(row) for row in sweep(costs, LARGEST)])
    rows = [Row(**row) for row in _read(SIMULATED)]
    runs = [RealRun(**run) for run in measured["ranks"]]
    write_page(ROOT / "docs" / "scaling.md", measured["machine"], costs, runs, rows)
    (best,) = (
        row
        for row in rows
        if (row.name, row.num_nodes, row.scheduling) == ("uneven", LARGEST, "predictive")
    )
    print(f"{best.num_nodes} nodes: {best.efficiency} of the ideal, bar {BAR}")  # noqa: T201
    return 0 if best.efficiency >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
