"""Finished jobs compared and verified: real runs, a real server, the real command line."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator.contract.reports import WindowRecord
from tests.e2e.conftest import ServerFactory
from tests.support.server import Server
from tests.support.tiny import save_model, save_tokenizer, words

DOCUMENTS = [words(20 + 15 * (seed % 4), seed=seed) for seed in range(8)]


@pytest.fixture
def server(make_server: ServerFactory, tmp_path: Path) -> Server:
    for seed, name in enumerate(("one", "other")):
        save_model(tmp_path / "models" / name, seed=seed)
        save_tokenizer(tmp_path / "models" / name)
    return make_server()


def run(server: Server, model: str, **scoring: Any) -> str:
    """The id of a job that succeeded."""
    request = {
        "model": {"kind": "folder", "path": model},
        "data": {"kind": "inline", "documents": DOCUMENTS},
        "scoring": {"convention": "lm-eval", "window": 32, **scoring},
    }
    job_id = server.submit(request)
    server.wait_state(job_id, "succeeded", within_s=90)
    return job_id


def assay(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.stderr or done.returncode, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_result_says_what_each_attempt_scored(
    make_server: ServerFactory, fake_interpreter: Path, tmp_path: Path
) -> None:
    (tmp_path / "models/m").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "models/m" / name).write_text("{}")
    server = make_server(python=str(fake_interpreter))
    request = {
        "model": {"kind": "folder", "path": "m"},
        "data": {"kind": "inline", "documents": ["die once"]},
        "limits": {"attempts": 2},
    }
    job_id = server.submit(request)
    result = server.wait_state(job_id, "succeeded")["result"]
    names = ("attempt", "num_batches", "num_windows", "num_scored_tokens")
    shares = [tuple(share[name] for name in names) for share in result["scored_by"]]
    assert shares == [(1, 2, 2, 20), (2, 1, 1, 10)]
    windows = server.http.get(f"/v1/jobs/{job_id}/windows")
    assert windows.headers["content-encoding"] == "gzip"
    nll = [json.loads(line)["nll_nats"] for line in windows.text.splitlines()]
    assert math.fsum(nll) == result["perplexity"]["nll_sum_nats"]


def test_finished_jobs_are_compared_and_verified(server: Server) -> None:
    baseline, candidate = run(server, "one"), run(server, "other")
    longer = run(server, "one", window=64)
    address = f"http://127.0.0.1:{server.port}"

    figures = [server.job(job)["result"]["perplexity"] for job in (baseline, candidate)]
    code, out = assay("compare", baseline, candidate, "--server", address, "--json")
    found = json.loads(out)
    assert (code, found["unit"], found["num_clusters"]) == (0, "window", len(DOCUMENTS))
    assert found["num_pairs"] == figures[0]["num_windows"]
    means = [figure["mean_nll_nats"] for figure in figures]
    assert [found["baseline"]["value"], found["candidate"]["value"]] == pytest.approx(means)
    assert found["difference"] == pytest.approx(means[1] - means[0])
    assert [each["name"] for each in found["differs"]] == ["model"]

    found = server.http.get(
        "/v1/comparisons", params={"baseline": baseline, "candidate": longer}
    ).json()
    assert (found["unit"], found["num_pairs"]) == ("document", len(DOCUMENTS))
    assert [each["name"] for each in found["differs"]] == ["scoring.window", "scoring.stride"]

    lines = server.http.get(f"/v1/jobs/{baseline}/windows").text.splitlines()
    records = [WindowRecord.model_validate_json(line) for line in lines]
    assert math.fsum(each.nll_nats for each in records) == figures[0]["nll_sum_nats"]
    assert sum(each.num_bytes for each in records) == figures[0]["num_bytes"]

    code, out = assay("verify", baseline, "--state-dir", str(server.state_dir), "--windows", "5")
    assert code == 0, out
    assert "5 of" in out
    assert "agrees (limit 1e-06 relative)" in out

    # Other weights under the same name are told as such.
    save_model(server.state_dir.parent / "models" / "one", seed=7)
    code, out = assay("verify", baseline, "--state-dir", str(server.state_dir))
    assert (code, "the model has changed since the job" in out) == (1, True), out
    # As if the run had scored these weights wrongly: the figure does not come out again.
    now, then = re.findall(r"sha256:[0-9a-f]{64}", out)
    spool = server.state_dir / "runs" / baseline / "1" / "spool" / "rank-00000.jsonl"
    spool.write_text(spool.read_text().replace(then, now))
    code, out = assay("verify", baseline, "--state-dir", str(server.state_dir))
    assert (code, "DIFFERS" in out) == (1, True), out
