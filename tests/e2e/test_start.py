"""`python -m app` when something refuses, and servers that meet on a port or a state directory."""

import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.start import DATABASE_WITHIN_SECONDS, LOCK_FILE
from tests.e2e.conftest import ServerFactory
from tests.support.server import Server, free_port, wait_for

NUM_STREAMS = 60
JOB = {
    "model": {"kind": "folder", "path": "tiny"},
    "data": {"kind": "inline", "documents": ["one two"]},
}


def start(folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run `python -m app` in `folder` with settings that it can't start with."""
    given = {"port": free_port(), "state_dir": folder / "state", **settings}
    env = os.environ | {f"ASSAY_{name.upper()}": str(value) for name, value in given.items()}
    return subprocess.run(
        [sys.executable, "-m", "app"],
        env=env | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def make_model(folder: Path) -> None:
    """A model folder that the server finds."""
    model = folder / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")


@pytest.fixture
def idle_server(tmp_path: Path) -> Iterator[Server]:
    """A server without workers that has one model."""
    make_model(tmp_path)
    server = Server(tmp_path, worker="false", max_streams="100")
    server.start()
    yield server
    server.stop()


def events(server: Server) -> list[dict[str, Any]]:
    """The server's log."""
    return [json.loads(line) for line in server.log.read_text().splitlines() if line[:1] == "{"]


def test_settings_that_make_no_sense_are_named(tmp_path: Path) -> None:
    ended = start(tmp_path, port="high")
    assert ended.returncode == 2
    assert ended.stderr.startswith("ASSAY_PORT: ")
    assert list(tmp_path.iterdir()) == []
    ended = start(tmp_path, host="0.0.0.0")
    assert ended.returncode == 2
    assert ended.stderr.startswith("ASSAY_HOST=0.0.0.0 is reachable from other machines")
    assert "`assay token create --first`" in ended.stderr
    assert "ASSAY_ALLOW_UNAUTHENTICATED" in ended.stderr


@pytest.mark.parametrize(
    ("url", "code", "sentence"),
    [
        ("mysql://u:secret@h/x", 2, r"ASSAY_DATABASE_URL: mysql:// is not supported: use post"),
        ("postgresql://u:secret@h:many/x", 2, r"ASSAY_DATABASE_URL is not a URL: use post"),
        ("sqlite://", 2, r"ASSAY_DATABASE_URL: SQLite in memory can't be shared: use "),
        (
            "postgresql://u:secret@127.0.0.1:1/x",
            4,
            r"the database postgresql://127\.0\.0\.1:1/x can't be reached .*refused.*: see that ",
        ),
        ("sqlite:////no/such/x.db", 4, r"the database /no/such/x\.db can't be reached .*: check "),
    ],
)
def test_a_database_that_is_no_good_is_told_in_a_sentence(
    tmp_path: Path, url: str, code: int, sentence: str
) -> None:
    ended = start(tmp_path, database_url=url)
    assert ended.returncode == code, ended.stderr
    assert re.match(sentence, ended.stderr)
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stderr


def test_a_state_directory_that_is_no_good_is_told_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for state_dir in (file, file / "below", Path("/proc/no-such-place")):
        ended = start(tmp_path, state_dir=state_dir)
        assert ended.returncode == 4, ended.stderr
        assert ended.stderr.startswith(f"ASSAY_STATE_DIR={state_dir}")
        assert ": name a folder" in ended.stderr or "; name a folder" in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_a_newer_database_is_told_in_a_sentence(idle_server: Server, tmp_path: Path) -> None:
    idle_server.stop()
    database = sqlite3.connect(idle_server.state_dir / "assay.db")
    database.execute("UPDATE alembic_version SET version_num = '9999'")
    database.commit()
    database.close()
    ended = start(tmp_path, worker="false")
    assert ended.returncode == 4
    assert re.fullmatch(r"the database .*assay\.db can't be migrated: .* 9999, .*\n", ended.stderr)


def test_a_port_that_is_taken_is_told_before_anything_is_done(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = start(tmp_path, port=port)
    assert ended.returncode == 4
    assert ended.stderr.startswith(f"can't listen at ASSAY_HOST=127.0.0.1 ASSAY_PORT={port} (the")
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_one_state_directory_has_one_server_with_workers(
    make_server: ServerFactory, tmp_path: Path
) -> None:
    server = make_server()
    assert server.process is not None
    ended = start(tmp_path)
    assert ended.returncode == 4
    assert ended.stderr.startswith(f"a server (pid {server.process.pid}) runs the workers of ")
    assert "another state directory" in ended.stderr
    assert "ASSAY_WORKER=false" in ended.stderr
    second = Server(tmp_path, worker="false")
    second.log = tmp_path / "second.log"
    second.start()
    second.stop()


def test_a_server_takes_over_at_once_after_sigkill_while_a_launch_goes_on(
    make_server: ServerFactory, fake_interpreter: Path, tmp_path: Path
) -> None:
    make_model(tmp_path)
    server = make_server(python=str(fake_interpreter))
    job_id = server.submit(JOB | {"data": {"kind": "inline", "documents": ["hello"]}})
    server.wait_state(job_id, "running", within_s=30)
    launched = server.processes()
    for pid in launched:
        opened = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [name for name in opened if name.endswith(LOCK_FILE)]
    server.kill()
    server.start()
    assert server.job(job_id)["state"] == "running"
    assert set(server.processes()) == set(launched)


def test_a_disk_that_takes_no_more_is_told_and_recovers(idle_server: Server) -> None:
    # A limit on the size of files stands for the disk: it needs no privileges.
    assert idle_server.process is not None
    pid, limit = idle_server.process.pid, resource.RLIMIT_FSIZE
    before = resource.prlimit(pid, limit)
    place = f"the state directory {idle_server.state_dir}"
    resource.prlimit(pid, limit, (0, before[1]))
    answer = idle_server.http.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    (bad,) = [check for check in answer.json()["checks"] if not check["ok"]]
    assert (bad["name"], place in bad["detail"]) == ("disk", True)
    answer = idle_server.http.post("/v1/jobs", json=JOB)
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
    assert place in answer.json()["detail"]
    resource.prlimit(pid, limit, before)
    assert idle_server.http.get("/readyz").status_code == 200
    idle_server.submit(JOB)
    assert list(idle_server.state_dir.glob(".probe*")) == []


def test_followers_that_hang_up_leave_no_error_in_the_log(idle_server: Server) -> None:
    job_id = idle_server.submit(JOB)
    request = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: a\r\n\r\n".encode()

    def nobody_follows() -> bool:
        assert idle_server.process is not None
        number = f":{idle_server.port:04X} "
        lines = Path("/proc/net/tcp").read_text().splitlines()
        # 01 is a connection that stands, 08 one that only the client has closed.
        return not [x for x in lines if number in x[:22] and x.split()[3] in ("01", "08")]

    for read_bytes in (0, 1, 300, 1):
        connections = []
        for _ in range(NUM_STREAMS):
            connection = socket.create_connection(("127.0.0.1", idle_server.port), timeout=20)
            connection.sendall(request)
            connections.append(connection)
        for connection in connections:
            if read_bytes:
                connection.recv(read_bytes)
            connection.close()
        idle_server.http.get("/livez")
    idle_server.http.close()
    wait_for(nobody_follows, within_s=20, what="all connections are closed")
    idle_server.stop()
    assert [e for e in events(idle_server) if e["level"] in ("WARNING", "ERROR")] == []


def test_doubtful_settings_are_warned_of(tmp_path: Path) -> None:
    server = Server(tmp_path, worker="false", cpu_slot="2", server="http://x", data_roots="/no/x")
    server.start()
    assert server.process is not None
    server.stop()
    assert server.process.returncode == 0
    warnings = [e for e in events(server) if e["level"] == "WARNING"]
    assert [(e["variable"], e.get("did_you_mean"), e.get("path")) for e in warnings] == [
        ("ASSAY_CPU_SLOT", "ASSAY_CPU_SLOTS", None),
        ("ASSAY_DATA_ROOTS", None, "/no/x"),
    ]


def test_a_signal_during_the_start_ends_it_well(tmp_path: Path) -> None:
    with socket.socket() as mute:  # a database that takes the connection and says nothing
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"postgresql://u:secret@127.0.0.1:{mute.getsockname()[1]}/x"
        stop_while_it_starts(Server(tmp_path, database_url=url), mute)


def stop_while_it_starts(server: Server, database: socket.socket) -> None:
    """Stop a server that waits for its database."""
    with (
        server.log.open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "app"], env=server.env, stdout=log, stderr=log
        ) as process,
    ):
        try:
            database.settimeout(30)
            connection, _ = database.accept()
            with connection:
                started_at = time.monotonic()
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0, server.log_tail()
                assert time.monotonic() - started_at < DATABASE_WITHIN_SECONDS / 2
        finally:
            process.kill()
    assert "Traceback" not in server.log_tail()
