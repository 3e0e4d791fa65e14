"""`python -m app` as a process: how it ends, raw HTTP."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.server import Server, wait_for

STOP_S = 8.0
NUM_FOLLOWERS = 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that launches nothing, with one model folder that it can find."""
    server = Server(tmp_path, worker="false", body_max_bytes="100000")
    model = tmp_path / "models" / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def job_id(server: Server) -> str:
    """A job that stays queued."""
    return server.submit(
        {
            "model": {"kind": "folder", "path": "tiny"},
            "data": {"kind": "inline", "documents": ["one two"]},
        }
    )


class Follower(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, server: Server, path: str) -> None:
        super().__init__(daemon=True)
        self._url = f"http://127.0.0.1:{server.port}{path}"
        self.text = ""
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with httpx.stream("GET", self._url, timeout=60) as answer:
                for chunk in answer.iter_text():
                    self.text += chunk
        except httpx.HTTPError as error:
            self.error = error

    def has_begun(self) -> bool:
        return "event: state" in self.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_streams_and_waits_end_with_the_server(
    server: Server, job_id: str, number: signal.Signals
) -> None:
    followers = [Follower(server, f"/v1/jobs/{job_id}/events") for _ in range(NUM_FOLLOWERS)]
    answers: list[httpx.Response] = []

    def wait() -> None:
        url = f"http://127.0.0.1:{server.port}/v1/jobs/{job_id}"
        answers.append(httpx.get(url, headers={"Prefer": "wait=60"}, timeout=90))

    waiting = threading.Thread(target=wait, daemon=True)
    for thread in (*followers, waiting):
        thread.start()
    for follower in followers:
        wait_for(follower.has_begun, within_s=10, what="the stream has begun")
    assert server.process is not None
    started_at = time.monotonic()
    server.process.send_signal(number)
    assert server.process.wait(timeout=30) == 0, server.log_tail()
    assert time.monotonic() - started_at < STOP_S
    for thread in (*followers, waiting):
        thread.join(10)
        assert not thread.is_alive()
    for follower in followers:
        assert follower.error is None
        assert "retry: 3000" in follower.text
        assert "event: end" not in follower.text
    assert [(a.status_code, a.json()["state"]) for a in answers] == [(200, "queued")]


def test_a_follower_that_reads_nothing_does_not_hold_the_server(
    server: Server, job_id: str
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert server.process is not None
        started_at = time.monotonic()
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0
        assert time.monotonic() - started_at < STOP_S


def exchange(server: Server, request: bytes) -> bytes:
    """Everything that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def test_a_large_body_is_refused_before_it_is_sent(server: Server) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    answer = exchange(server, head + b"Content-Length: 99999999999\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer
    chunk = b"4000\r\n" + b" " * 0x4000 + b"\r\n"
    answer = exchange(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 7)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert server.http.get("/livez").status_code == 200
