"""A receiver of messages on a real socket: it answers as told, and keeps what it was sent."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

DRIP_S = 0.1
HANG_S = 30.0
"""Longest that a receiver keeps silent; it ends sooner when it is closed."""


@dataclass(frozen=True)
class Reply:
    """How to answer one request."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False
    """Say nothing at all."""
    drops: bool = False
    """Close the connection without an answer."""
    drips: bool = False
    """Begin to answer, and send a byte now and then, for ever."""


@dataclass(frozen=True)
class Message:
    """What arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """Of the message."""
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Whether one of its signatures is by this secret, worked out as the specification says."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        text = f"{self.id}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


class Receiver(ThreadingHTTPServer):
    """Gives each of `replies` once, in turn, then what `answer` says."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        """Listen on loopback."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.replies: list[Reply] = []
        self.messages: list[Message] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}/hook?team=7"

    def answer(self, message: Message) -> Reply:
        """How to answer a message."""
        return Reply()


R = TypeVar("R", bound=Receiver)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        message = Message(self.path, headers, body)
        self.server.messages.append(message)
        reply = self.server.replies.pop(0) if self.server.replies else self.server.answer(message)
        if reply.hangs:
            self.server.closing.wait(HANG_S)
        while reply.drips and not self.server.closing.wait(DRIP_S):
            try:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: " if self.close_connection else b"x")
            except OSError:
                return
            self.close_connection = False
        if reply.hangs or reply.drops or reply.drips:
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        if "Content-Length" in reply.headers:  # promises more than comes
            self.wfile.flush()
            self.server.closing.wait(HANG_S)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    """A receiver that listens."""
    with listening(Receiver(port)) as server:
        yield server


@contextmanager
def listening(server: R) -> Iterator[R]:
    """A receiver of any kind that listens."""
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
