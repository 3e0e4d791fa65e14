"""Real torchrun and the real evaluator behind a real server, killed in the middle."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import ServerFactory
from tests.support.server import Server, wait_for
from tests.support.tiny import save_model, save_tokenizer, words

NUM_DOCUMENTS = 40
LAYERS = 24
"""So many that there is time to kill a run half way."""


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """Uneven documents: enough of them to be killed half way."""
    return [words(100 + 150 * (seed % 9), seed=seed) for seed in range(NUM_DOCUMENTS)]


@pytest.fixture
def server(make_server: ServerFactory, tmp_path: Path) -> Server:
    save_model(tmp_path / "models/tiny", layers=LAYERS)
    save_tokenizer(tmp_path / "models/tiny")
    return make_server()


def request(documents: list[str], ranks: int) -> dict[str, Any]:
    return {
        "model": {"kind": "folder", "path": "tiny"},
        "data": {"kind": "inline", "documents": documents},
        "scoring": {"convention": "lm-eval", "window": 64, "batch_tokens": 64},
        "launch": {"ranks_per_node": ranks},
        "limits": {"attempts": 2},
    }


def half_way(server: Server, job_id: str) -> dict[str, Any]:
    """Wait until some batches are in the ledger, but not all."""

    def look() -> dict[str, Any] | None:
        job = server.job(job_id)
        assert not job["is_terminal"], f"too fast to be killed half way: {job['progress']}"
        return job if job["progress"]["num_batches_done"] > 0 else None

    return wait_for(look, within_s=120, what="the first batches")


def total(job: dict[str, Any]) -> tuple[str, int]:
    """The bits of the total and the count."""
    perplexity = job["result"]["perplexity"]
    return float(perplexity["nll_sum_nats"]).hex(), perplexity["num_scored_tokens"]


def test_the_number_survives_everything(server: Server, documents: list[str]) -> None:
    clean = server.wait_state(server.submit(request(documents, 1)), "succeeded", within_s=90)
    num_batches = clean["result"]["plan"]["num_batches"]

    # Four ranks, one of them killed half way: the second attempt scores the rest.
    job_id = server.submit(request(documents, 4))
    num_known = half_way(server, job_id)["progress"]["num_batches_done"]
    ranks = [pid for pid, command in server.processes().items() if " -u -m evaluator" in command]
    assert len(ranks) == 4, server.processes()
    os.kill(ranks[-1], signal.SIGKILL)
    killed = server.wait_state(job_id, "succeeded", within_s=120)
    assert total(killed) == total(clean)
    assert [each["reason"] for each in killed["attempts"]] == ["rank_died", None]
    assert "killed by signal 9" in killed["attempts"][0]["message"]
    assert num_known <= killed["result"]["num_batches_resumed"] < num_batches
    scored_by = killed["result"]["scored_by"]
    assert {each["attempt"] for each in scored_by} == {1, 2}
    num_windows = sum(each["num_windows"] for each in scored_by)
    assert num_windows == killed["result"]["plan"]["num_windows"]

    # Two ranks, the server killed in the middle and started again: the launch goes on.
    job_id = server.submit(request(documents, 2))
    half_way(server, job_id)
    server.kill()
    assert server.processes()
    server.start()
    adopted = server.wait_state(job_id, "succeeded", within_s=120)
    assert total(adopted) == total(clean)
    assert adopted["attempt"] == 1
    assert server.processes() == {}


@pytest.mark.parametrize("victim", ["torch.distributed.run", "supervisor"])
def test_whoever_is_killed_the_job_goes_on(
    server: Server, documents: list[str], victim: str
) -> None:
    job_id = server.submit(request(documents, 2))
    half_way(server, job_id)
    (pid,) = [pid for pid, command in server.processes().items() if victim in command]
    os.kill(pid, signal.SIGKILL)
    job = server.wait_state(job_id, "succeeded", within_s=120)
    assert job["attempt"] == 2
    assert job["result"]["num_batches_resumed"] > 0
    assert server.processes() == {}


def test_cancel_of_a_real_run_leaves_no_process(server: Server, documents: list[str]) -> None:
    job_id = server.submit(request(documents, 2))
    half_way(server, job_id)
    server.http.post(f"/v1/jobs/{job_id}/cancel")
    server.wait_state(job_id, "cancelled", within_s=30)
    assert server.processes() == {}
