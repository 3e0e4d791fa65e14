"""The demonstration: its server first, then all of it on the real model."""

import json
import os
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import demo_server
from app.cli.demo_inputs import DemoError
from tests.reference.plain_perplexity import evaluate
from tests.support.server import launch_processes, wait_for

ROOT = Path(__file__).parents[2]
STATE = Path(".assay/demo")
# A checkout that is not installed is found too, from any working directory.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
DEMO = (sys.executable, "-m", "app.cli", "demo")
DEADLINE_S = 600  # minutes on a busy machine; one on an idle one


def test_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"exit code 2; the end of .*\nASSAY_CPU_SLOTS: "):
        demo_server.start(tmp_path, port=0, settings={"CPU_SLOTS": "many"})


def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DemoError, match=f"port {port} is taken"):
            demo_server.start(tmp_path, port=port, settings={})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the demonstration runs; nothing of it is left at the end."""
    folder = tmp_path_factory.mktemp("demo")
    yield folder
    server = demo_server.find_running(folder / STATE)
    if server is not None:
        server.stop()
    wait_for(lambda: not launch_processes(folder / STATE), within_s=30, what="no process left")


@pytest.fixture(scope="module")
def kept_output(folder: Path) -> tuple[str, str]:
    """What a first demonstration wrote on stdout and stderr; it left its server running."""
    done = subprocess.run(
        [*DEMO, "--keep", "--json"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def kept(kept_output: tuple[str, str]) -> dict[str, Any]:
    """The job of that demonstration."""
    job: dict[str, Any] = json.loads(kept_output[0])
    return job


def interrupt_demo(folder: Path, *, by: signal.Signals) -> str:
    """Run the demonstration, interrupt it while it scores, return its output."""
    output = folder / "output.txt"
    with (
        output.open("w") as file,
        subprocess.Popen(DEMO, cwd=folder, env=ENVIRONMENT, stdout=file, stderr=file) as process,
    ):
        try:
            wait_for(
                lambda: "score" in output.read_text() or process.poll() is not None,
                within_s=DEADLINE_S,
                what="the demonstration scores",
            )
            process.send_signal(by)
            assert process.wait(timeout=60) == 130, output.read_text()
        finally:
            process.kill()
    with sqlite3.connect(folder / STATE / "assay.db") as database:
        query = "SELECT state FROM jobs ORDER BY id DESC LIMIT 1"
        assert database.execute(query).fetchone() == ("cancelled",)
    database.close()
    assert launch_processes(folder / STATE) == {}
    return output.read_text()


@pytest.mark.smollm2
def test_figure_is_that_of_a_plain_script(kept: dict[str, Any], folder: Path) -> None:
    records = (folder / STATE / "data/python-reference.jsonl").read_text().splitlines()
    texts = [json.loads(record)["text"] for record in records]
    (config,) = (folder / STATE / "cache/gguf").glob("*/config.json")
    plain = evaluate(config.parent, texts, "lm-eval", 512)
    figure = kept["result"]["perplexity"]
    assert kept["state"] == "succeeded"
    assert figure["num_scored_tokens"] == plain["num_scored_tokens"]
    assert figure["nll_sum_nats"] == pytest.approx(plain["nll_sum_nats"], rel=1e-7)
    assert figure["token_perplexity"] == pytest.approx(plain["perplexity"], rel=1e-7)
    assert [rank["rank"] for node in kept["nodes"] for rank in node["ranks"]] == [0, 1]


@pytest.mark.smollm2
def test_what_it_says_on_a_first_run_can_be_typed_as_it_stands(
    kept: dict[str, Any], kept_output: tuple[str, str]
) -> None:
    _, said = kept_output
    assert "The first run converts the GGUF weights" in said
    (look,) = [line for line in said.splitlines() if line.startswith("Look: ")]
    shown = subprocess.run(
        [*shlex.split(look.removeprefix("Look: ")), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["id"] == kept["id"]


@pytest.mark.smollm2
def test_ctrl_c_cancels_the_job_and_leaves_a_server_that_was_there(
    kept: dict[str, Any], folder: Path
) -> None:
    server = demo_server.find_running(folder / STATE)
    assert server is not None
    output = interrupt_demo(folder, by=signal.SIGINT)
    assert f"already runs at {server.url}" in output
    assert "Traceback" not in output
    assert "converts" not in output
    answer = httpx.get(f"{server.url}/v1/jobs/{kept['id']}")
    assert answer.json()["state"] == "succeeded"
    server.stop()
    assert demo_server.find_running(folder / STATE) is None


@pytest.mark.smollm2
def test_sigterm_cancels_the_job_and_stops_the_server(kept: dict[str, Any], folder: Path) -> None:
    assert kept["state"] == "succeeded"  # so the weights are in the cache
    output = interrupt_demo(folder, by=signal.SIGTERM)
    assert "Cancelling the job." in output
    assert "Interrupted." in output
    assert "Traceback" not in output
    assert demo_server.find_running(folder / STATE) is None
