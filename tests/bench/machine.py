"""Where a measurement was made, and how its figures are shown and kept."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import Any, ParamSpec, TypeVar

import psutil
import pytest

P = ParamSpec("P")
T = TypeVar("T")

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / ".assay" / "bench"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def describe(*packages: str) -> dict[str, Any]:
    """Machine, commit and versions of `packages`; `load` tells whether others were at work."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "is_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "processor": _processor(),
        "num_cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": [round(each, 2) for each in os.getloadavg()],
        "versions": {name: version(name) for name in packages},
    }


def apart(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What it returns in a new process, like a rank's: memory that others freed makes it faster."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *args, **kwargs).result()


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum of durations in seconds, as milliseconds."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {
        "p50_ms": round(1000 * cuts[49], 2),
        "p99_ms": round(1000 * cuts[98], 2),
        "max_ms": round(1000 * max(seconds), 2),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal members as text in columns."""
    cells = [[*rows[0]], *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in cells
    )


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def publish(
    name: str, rows: Sequence[Mapping[str, Any]], capsys: pytest.CaptureFixture[str], *used: str
) -> None:
    """Print the rows, and write them to `.assay/bench/NAME.json` with the machine described.

    Args:
        name: of the measurement.
        rows: of equal members.
        capsys: of the test.
        used: packages whose versions matter.
    """
    OUTPUT.mkdir(parents=True, exist_ok=True)
    record = {"machine": describe(*used), "rows": list(rows)}
    (OUTPUT / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    with capsys.disabled():
        print(f"\n{name}\n{table(rows)}")  # noqa: T201 - what a benchmark is for
