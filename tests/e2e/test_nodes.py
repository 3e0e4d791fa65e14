"""Several nodes, simulated on this machine: an agent each, one launch."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import ServerFactory
from tests.support.server import Server, wait_for
from tests.support.tiny import save_model, save_tokenizer, words


@pytest.fixture
def server(make_server: ServerFactory, tmp_path: Path) -> Server:
    save_model(tmp_path / "models/tiny", layers=16)
    save_tokenizer(tmp_path / "models/tiny")
    return make_server()


def request(nodes: int, ranks: int, num_documents: int) -> dict[str, Any]:
    return {
        "model": {"kind": "folder", "path": "tiny"},
        "data": {
            "kind": "inline",
            "documents": [words(200 + 50 * (seed % 5), seed=seed) for seed in range(num_documents)],
        },
        "scoring": {"convention": "lm-eval", "window": 64, "batch_tokens": 64},
        "launch": {"nodes": nodes, "ranks_per_node": ranks},
        "limits": {"attempts": 1},
    }


def layout(job: dict[str, Any]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Node ranks, each with the ranks and local ranks of its processes."""
    return [
        (node["node_rank"], [(rank["rank"], rank["local_rank"]) for rank in node["ranks"]])
        for node in job["nodes"]
    ]


def test_two_nodes_give_the_bits_of_one_and_a_log_each(server: Server) -> None:
    alone = server.wait_state(server.submit(request(1, 1, 8)), "succeeded")
    job = server.wait_state(server.submit(request(2, 2, 8)), "succeeded", within_s=90)
    figures = [each["result"]["perplexity"]["nll_sum_nats"] for each in (alone, job)]
    assert figures[0].hex() == figures[1].hex()
    assert layout(job) == [(0, [(0, 0), (1, 1)]), (1, [(2, 0), (3, 1)])]
    for node, ranks in ((0, {0, 1}), (1, {2, 3})):
        answer = server.http.get(f"/v1/jobs/{job['id']}/logs", params={"node": node})
        lines = [json.loads(line) for line in answer.text.splitlines() if line.startswith("{")]
        assert {line["rank"] for line in lines if "rank" in line} <= ranks
    missing = server.http.get(f"/v1/jobs/{job['id']}/logs", params={"node": 2})
    assert missing.status_code == httpx.codes.NOT_FOUND
    assert missing.json()["code"] == "node_not_found"


def test_the_death_of_a_node_ends_the_launch_with_its_reason(server: Server) -> None:
    job_id = server.submit(request(2, 1, 60))
    spool = server.state_dir / "runs" / job_id / "1" / "spool"

    def second_node() -> int | None:
        path = spool / "rank-00001.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return int(json.loads(lines[0])["pid"]) if lines else None

    rank_pid = wait_for(second_node, within_s=60, what="the rank of the second node")
    agent = psutil.Process(rank_pid).parent()
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    job = server.wait_state(job_id, "failed", within_s=30)
    assert job["attempts"][0]["signal"] == signal.SIGKILL
    assert server.processes() == {}
