"""Launches that were started before their job."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import ServerFactory
from tests.support.server import Server, launch_processes, wait_for
from tests.support.tiny import save_model, save_tokenizer, words


@pytest.fixture
def server(make_server: ServerFactory, tmp_path: Path) -> Server:
    save_model(tmp_path / "models/tiny")
    save_tokenizer(tmp_path / "models/tiny")
    return make_server(warm_launches="1")


def wait_for_agent(server: Server) -> Path:
    """The folder of an agent that is ready."""
    folder = server.state_dir / "runs" / ".warm"

    def look() -> Path | None:
        return next((path.parent for path in folder.glob("*/warm")), None)

    return wait_for(look, within_s=60, what="a warm agent")


def submit(server: Server, ranks: int) -> str:
    return server.submit(
        {
            "model": {"kind": "folder", "path": "tiny"},
            "data": {"kind": "inline", "documents": [words(200, seed=seed) for seed in range(4)]},
            "scoring": {"convention": "lm-eval", "window": 64},
            "launch": {"ranks_per_node": ranks},
            "limits": {"attempts": 1},
        }
    )


def test_a_warm_launch_gives_the_same_bits_and_serves_one_job(server: Server) -> None:
    totals = set()
    for ranks in (1, 2):
        agent = wait_for_agent(server)
        job = server.wait_state(submit(server, ranks), "succeeded")
        run_dir = server.state_dir / "runs" / job["id"] / "1"
        assert (run_dir / "warm.json").exists()
        assert not agent.exists()
        totals.add(job["result"]["perplexity"]["nll_sum_nats"])
    cold = server.wait_state(submit(server, 1), "succeeded")
    assert not (server.state_dir / "runs" / cold["id"] / "1" / "warm.json").exists()
    assert totals == {cold["result"]["perplexity"]["nll_sum_nats"]}


def test_agents_do_not_outlive_a_killed_server(server: Server) -> None:
    agent = wait_for_agent(server)
    server.kill()
    wait_for(lambda: not launch_processes(server.state_dir), within_s=20, what="the agent ended")
    assert agent.exists()
    server.start()
    wait_for(lambda: not agent.exists(), within_s=20, what="its folder removed")
    assert wait_for_agent(server) != agent


def test_a_dead_rank_of_a_warm_launch_is_named(server: Server) -> None:
    wait_for_agent(server)
    job_id = submit(server, 2)

    spool = server.state_dir / "runs" / job_id / "1" / "spool" / "rank-00001.jsonl"

    def second_rank() -> int | None:
        lines = spool.read_text().splitlines() if spool.exists() else []
        return int(json.loads(lines[0])["pid"]) if lines else None

    os.kill(wait_for(second_rank, within_s=30, what="rank 1"), signal.SIGKILL)
    job = server.wait_state(job_id, "failed")
    assert job["state_reason"] == "rank_died"
    assert "rank 1 was killed by signal 9" in job["message"]
