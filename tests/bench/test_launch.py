"""From POST to scoring: cold, from a warm launch, and of torchrun alone with the same spec."""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from app.cli.demo_inputs import find_model
from tests.bench.machine import publish
from tests.support.runs import ROOT
from tests.support.server import Server, wait_for

NUM_RUNS = 3
WITHIN_S = 120.0
POLL_S = 0.005
"""So finely is the time known."""
TEXT = " ".join(f"Sentence {number} of a short text." for number in range(20))


def request(model: Path) -> dict[str, Any]:
    return {
        "model": {"kind": "gguf", "path": model.name},
        "data": {"kind": "inline", "documents": [TEXT]},
        "scoring": {"convention": "lm-eval", "window": 32, "batch_tokens": 32},
    }


def seconds_to_score(spool: Path, began: float) -> float:
    """Until rank 0 says that it scores; it says so at once."""

    def scores() -> float | None:
        text = spool.read_text() if spool.exists() else ""
        return time.monotonic() if '"stage":"score"' in text else None

    return wait_for(scores, within_s=WITHIN_S, what="scoring", poll_s=POLL_S) - began


def of_a_job(server: Server, model: Path) -> float:
    began = time.monotonic()
    job_id = server.submit(request(model))
    run_dir = server.state_dir / "runs" / job_id / "1"
    seconds = seconds_to_score(run_dir / "spool" / "rank-00000.jsonl", began)
    server.wait_state(job_id, "succeeded", within_s=WITHIN_S)
    return seconds


def of_torchrun(spec: dict[str, Any], folder: Path) -> float:
    path = folder / "job.json"
    path.write_text(json.dumps(spec))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "-m", "evaluator"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*command, str(path), "--run-dir", str(folder / "run")],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = seconds_to_score(folder / "run" / "spool" / "rank-00000.jsonl", began)
    assert process.wait(WITHIN_S) == 0
    return seconds


def wait_for_warm(server: Server) -> None:
    folder = server.state_dir / "runs" / ".warm"
    wait_for(lambda: next(folder.glob("*/warm"), None), within_s=WITHIN_S, what="a warm launch")


def test_from_post_to_scoring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = find_model()
    seconds: dict[str, list[float]] = {"cold": [], "warm": [], "torchrun": []}
    for name in ("cold", "warm"):
        (tmp_path / name).mkdir()
    cold = Server(tmp_path / "cold", model_roots=str(model.parent))
    warm = Server(tmp_path / "warm", model_roots=str(model.parent), warm_launches="1")
    try:
        for server in (cold, warm):
            server.start()
            of_a_job(server, model)  # converts the weights
        spec = request(model) | {
            "model": {"kind": "gguf", "path": str(model)},
            "cache_dir": str(cold.state_dir / "cache"),
        }
        for number in range(NUM_RUNS):
            seconds["cold"].append(of_a_job(cold, model))
            wait_for_warm(warm)
            seconds["warm"].append(of_a_job(warm, model))
            wait_for_warm(warm)  # its successor computes no more while torchrun is timed
            folder = tmp_path / f"torchrun-{number}"
            folder.mkdir()
            seconds["torchrun"].append(of_torchrun(spec, folder))
    finally:
        cold.stop()
        warm.stop()
    rows = [
        {
            "from": name,
            "median_s": median(each),
            "least_s": min(each),
            "most_s": max(each),
        }
        for name, each in seconds.items()
    ]
    publish("launch", rows, capsys, "torch", "transformers")
