"""Every way a job can go, with real processes and a run that behaves as it is told."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ServerFactory
from tests.support.server import Server, wait_for


@pytest.fixture(autouse=True)
def _model(tmp_path: Path) -> None:
    """What the server looks for in a model folder; the run itself never opens it."""
    folder = tmp_path / "models/m"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")


@pytest.fixture
def server(make_server: ServerFactory, fake_interpreter: Path) -> Server:
    return make_server(python=str(fake_interpreter))


def request(mode: str, *words: str, attempts: int = 1, **limits: int) -> dict[str, Any]:
    return {
        "model": {"kind": "folder", "path": "m"},
        "data": {"kind": "inline", "documents": [mode, *words]},
        "limits": {"attempts": attempts, **limits},
    }


def test_a_job_that_goes_well(server: Server) -> None:
    job = server.wait_state(server.submit(request("go well")), "succeeded")
    assert job["result"]["perplexity"]["nll_sum_nats"] == 0.6
    assert job["progress"]["fraction"] == 1.0
    assert (job["state_reason"], job["message"], job["attempt"]) == (None, None, 1)
    assert server.processes() == {}


def test_reports_that_only_reach_the_spool_count_as_well(server: Server) -> None:
    job = server.wait_state(server.submit(request("go well", "offline")), "succeeded")
    assert job["result"]["perplexity"]["nll_sum_nats"] == 0.6
    assert job["progress"]["num_batches_done"] == 3


def test_a_result_counts_whatever_the_exit_code(server: Server) -> None:
    job = server.wait_state(server.submit(request("result, then exit 3")), "succeeded")
    assert job["attempts"][0]["exit_code"] == 3


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("no result", "result_missing"), ("wrong total", "result_invalid")],
    ids=["no-result", "wrong-total"],
)
def test_no_valid_result_is_no_success(server: Server, mode: str, reason: str) -> None:
    job = server.wait_state(server.submit(request(mode)), "failed")
    assert job["state_reason"] == reason
    assert job["result"] is None


def test_the_ledger_keeps_its_first_numbers(server: Server) -> None:
    job_id = server.submit(request("contradict"))
    job = server.wait_state(job_id, "succeeded")
    assert job["result"]["perplexity"]["nll_sum_nats"] == 0.6
    stream = server.http.get(f"/v1/jobs/{job_id}/events").text
    assert "event: audit" in stream


def test_a_killed_run_is_tried_again_and_only_the_rest_is_scored(server: Server) -> None:
    job = server.wait_state(server.submit(request("die once", attempts=2)), "succeeded")
    first, second = job["attempts"]
    assert (first["reason"], first["signal"]) == ("rank_died", 9)
    assert second["reason"] is None
    finished = server.state_dir / "runs" / job["id"] / "2" / "finished.jsonl"
    assert len(finished.read_text().splitlines()) == 2


@pytest.mark.parametrize("mode", ["silent", "hello", "deaf", "half", "result, then linger"])
def test_cancel_leaves_no_process_whatever_the_state(server: Server, mode: str) -> None:
    state = {"silent": "starting", "result, then linger": "finishing"}.get(mode, "running")
    job_id = server.submit(request(mode))
    server.wait_state(job_id, state)
    wait_for(server.processes, within_s=10, what="a process")
    answer = server.http.post(f"/v1/jobs/{job_id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")
    again = server.http.post(f"/v1/jobs/{job_id}/cancel")
    assert again.status_code in (200, 202)
    asked_at = time.monotonic()
    job = server.wait_state(job_id, "cancelled", within_s=15)
    assert time.monotonic() - asked_at < 10
    assert server.processes() == {}
    assert job["state_reason"] == "cancelled"


def test_cancel_while_queued_never_launches(make_server: ServerFactory) -> None:
    server = make_server(worker="false")
    job_id = server.submit(request("go well"))
    answer = server.http.post(f"/v1/jobs/{job_id}/cancel")
    assert answer.json()["state"] == "cancelled"
    assert not (server.state_dir / "runs").exists()


def test_cancel_survives_the_death_of_the_server(server: Server) -> None:
    job_id = server.submit(request("deaf"))
    server.wait_state(job_id, "running")
    server.http.post(f"/v1/jobs/{job_id}/cancel")
    server.kill()
    server.start()
    server.wait_state(job_id, "cancelled", within_s=15)
    assert server.processes() == {}


def test_a_launch_that_ends_while_the_server_is_away_is_settled(server: Server) -> None:
    job_id = server.submit(request("half"))
    wait_for(
        lambda: server.job(job_id)["progress"]["num_batches_done"] == 2,
        within_s=30,
        what="two batches",
    )
    server.kill()
    run_dir = server.state_dir / "runs" / job_id / "1"
    for pid, command in server.processes().items():
        if "fake_python" in command:
            os.kill(pid, signal.SIGKILL)
    wait_for((run_dir / "exit.json").exists, within_s=15, what="exit record")
    server.start()
    job = server.wait_state(job_id, "failed", within_s=10)
    assert job["progress"]["num_batches_done"] == 2


def test_a_killed_supervisor_takes_its_launch_with_it(server: Server) -> None:
    job_id = server.submit(request("deaf"))
    server.wait_state(job_id, "running")
    for pid, command in server.processes().items():
        if "supervisor" in command:
            os.kill(pid, signal.SIGKILL)
    job = server.wait_state(job_id, "lost", within_s=15)
    assert job["state_reason"] == "launch_lost"
    assert server.processes() == {}


def test_the_time_limit_ends_a_job(server: Server) -> None:
    job_id = server.submit(request("half", time_seconds=2))
    job = server.wait_state(job_id, "timed_out", within_s=20)
    assert job["state_reason"] == "deadline"
    assert "2 s" in job["message"]


def test_a_launch_that_never_reports_fails(
    make_server: ServerFactory, fake_interpreter: Path
) -> None:
    server = make_server(python=str(fake_interpreter), start_timeout_seconds="1")
    job = server.wait_state(server.submit(request("silent")), "failed", within_s=20)
    assert job["state_reason"] == "start_timeout"


def test_a_silent_rank_is_named(make_server: ServerFactory, fake_interpreter: Path) -> None:
    server = make_server(python=str(fake_interpreter), stall_timeout_seconds="1")
    job = server.wait_state(server.submit(request("half")), "failed", within_s=20)
    assert job["state_reason"] == "stalled"
    assert "rank 0 on here" in job["message"]
    assert "'score'" in job["message"]


def test_an_interpreter_that_is_not_there(make_server: ServerFactory) -> None:
    server = make_server(python="/nowhere/python")
    job = server.wait_state(server.submit(request("go well")), "failed", within_s=20)
    assert job["state_reason"] == "launch_failed"
    assert "/nowhere/python" in job["message"]


def test_retry_gives_a_failed_job_all_its_attempts_again(server: Server) -> None:
    job_id = server.submit(request("die once", attempts=1))
    server.wait_state(job_id, "failed")
    answer = server.http.post(f"/v1/jobs/{job_id}/retry")
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    job = server.wait_state(job_id, "succeeded")
    assert [each["number"] for each in job["attempts"]] == [1, 2]
    assert server.http.post(f"/v1/jobs/{job_id}/retry").status_code == httpx.codes.CONFLICT


def test_slots_are_kept_and_priority_goes_first(server: Server) -> None:
    wide = {**request("half"), "launch": {"ranks_per_node": 4}}
    first = server.submit(wide)
    server.wait_state(first, "running")
    low = server.submit({**request("go well"), "priority": -5})
    high = server.submit({**request("half"), "priority": 5, "launch": {"ranks_per_node": 4}})
    assert server.job(low)["state"] == server.job(high)["state"] == "queued"
    server.http.post(f"/v1/jobs/{first}/cancel")
    server.wait_state(high, "running")
    assert server.job(low)["state"] == "queued"
    server.http.post(f"/v1/jobs/{high}/cancel")
    server.wait_state(low, "succeeded")
