"""The client against answers that a real server gives rarely: away, restarting, broken."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from app.cli.client import Client, ClientError, is_loopback

SERVER = "http://assay.test"


class Broken(httpx.SyncByteStream):
    """Some bytes, then the connection is gone."""

    def __init__(self, start: bytes) -> None:
        self.start = start

    def __iter__(self) -> Iterator[bytes]:
        yield self.start
        msg = "peer closed connection"
        raise httpx.RemoteProtocolError(msg)


class Server:
    """Answers each request for events with the next of `streams`; keeps what was asked."""

    def __init__(self, *streams: httpx.Response | Exception) -> None:
        self.streams = list(streams)
        self.last_ids: list[str | None] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.last_ids.append(request.headers.get("Last-Event-ID"))
        answer = self.streams.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def client_of(handler: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client(SERVER, transport=httpx.MockTransport(handler))


def frame(number: int, kind: str, **data: object) -> bytes:
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def follow(server: Server, *, patience_s: float = 5.0) -> tuple[list[str | None], list[str]]:
    """Return the ids of the events, and the reasons for each loss of the stream."""
    lost: list[str] = []
    with client_of(server) as client:
        events = client.follow(
            "job_1", patience_s=patience_s, first_delay_s=0.001, on_away=lost.append
        )
        return [event.id for event in events], lost


def test_stream_is_taken_up_after_the_last_event_seen() -> None:
    server = Server(
        httpx.Response(200, stream=Broken(frame(1, "state") + frame(2, "progress") + b"id: 3\nda")),
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"title": "starting", "code": "not_ready"}),
        httpx.Response(200, content=frame(3, "progress")),
        httpx.Response(200, content=frame(4, "end")),
    )
    ids, lost = follow(server)
    assert ids == ["1", "2", "3", "4"]
    assert server.last_ids == [None, "2", "2", "2", "3"]
    assert len(lost) == 4


def test_terminal_state_of_an_earlier_try_does_not_end_the_stream() -> None:
    content = frame(7, "state", is_terminal=True) + frame(8, "state", is_terminal=False)
    server = Server(httpx.Response(200, content=content + frame(9, "end")))
    assert follow(server) == (["7", "8", "9"], [])


def test_no_content_says_that_all_was_seen() -> None:
    server = Server(httpx.Response(200, content=frame(5, "progress")), httpx.Response(204))
    assert follow(server)[0] == ["5"]
    assert server.last_ids == [None, "5"]


def test_patience_ends() -> None:
    server = Server(*(httpx.ConnectError("refused") for _ in range(1000)))
    with pytest.raises(ClientError, match="no server answers"):
        follow(server, patience_s=0.01)


def test_refusal_ends_the_stream_at_once() -> None:
    server = Server(httpx.Response(404, json={"title": "No job", "code": "job_not_found"}))
    with pytest.raises(ClientError) as caught:
        follow(server)
    assert (caught.value.code, caught.value.status) == ("job_not_found", 404)


def test_event_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ClientError, match="can't be read"):
        follow(Server(httpx.Response(200, content=b"data: {\n\n")))


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (httpx.Response(200, content=b"<html>"), "bad_answer", "is this an Assay server"),
        (httpx.Response(200, content=b"[]"), "bad_answer", "is this an Assay server"),
        (httpx.Response(502, content=b"<html>"), "http_502", "HTTP 502"),
        (httpx.Response(301, headers={"Location": "/"}), "http_301", "HTTP 301"),
        (httpx.Response(404, json={"detail": "Not Found"}), "http_404", "HTTP 404"),
        (
            httpx.Response(422, json={"title": "t", "detail": "window: too small", "code": "c"}),
            "c",
            "window: too small",
        ),
        (
            httpx.Response(
                422,
                json={
                    "title": "t",
                    "detail": "/data: missing (and 1 more)",
                    "code": "invalid_request",
                    "errors": [
                        {"in": "body", "pointer": "/data", "detail": "missing"},
                        {"in": "body", "pointer": "/x", "detail": "unknown"},
                    ],
                },
            ),
            "invalid_request",
            "/data: missing; /x: unknown",
        ),
    ],
    ids=["html", "list", "proxy", "redirect", "other-server", "problem", "places"],
)
def test_answers_become_one_error(answer: httpx.Response, code: str, words: str) -> None:
    with client_of(lambda _: answer) as client, pytest.raises(ClientError) as caught:
        client.job("job_1")
    assert caught.value.code == code
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectError("refused"), "assay serve"),
        (httpx.ReadTimeout("slow"), "did not answer in time"),
        (httpx.ReadError("reset"), "broke"),
    ],
)
def test_network_errors_say_what_to_do(error: Exception, words: str) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    with client_of(fail) as client, pytest.raises(ClientError, match=words) as caught:
        client.job("job_1")
    assert caught.value.code == "unreachable"


def test_job_id_cannot_leave_its_place_in_the_path() -> None:
    paths: list[bytes] = []

    def note(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(200, json={})

    with client_of(note) as client:
        client.job("../livez?x")
    assert paths == [b"/v1/jobs/..%2Flivez%3Fx"]


@pytest.mark.parametrize("server", ["127.0.0.1:8321", "ftp://x", "", "http://[", "http://x:port"])
def test_address_is_checked(server: str) -> None:
    with pytest.raises(ClientError) as caught:
        Client(server)
    assert caught.value.code == "bad_address"


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example", False),
        ("http://[", False),
    ],
)
def test_is_loopback(server: str, local: bool) -> None:
    assert is_loopback(server) is local


@pytest.mark.parametrize(
    ("variable", "sent"), [(None, None), ("", None), (" assay_x\n", "Bearer assay_x")]
)
def test_the_token_of_the_environment_is_sent(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, sent: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv("ASSAY_TOKEN", variable)
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization"))
        return httpx.Response(200, json={})

    with client_of(answer) as client:
        client.job("job_1")
    assert seen == [sent]


@pytest.mark.parametrize("variable", ["assay_\u00e9", "two words", "a\nb"])
def test_what_can_be_no_token_is_not_sent(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("ASSAY_TOKEN", variable)
    with pytest.raises(ClientError, match="ASSAY_TOKEN is no token") as caught:
        client_of(lambda _: httpx.Response(200))
    assert variable not in str(caught.value)
