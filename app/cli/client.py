"""The server's API over HTTP: the only module of the command line that uses httpx."""

import ipaddress
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from app.cli.sse import Event, EventParser

_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
# Longer than several heartbeats of the stream (15 s by default).
_STREAM_TIMEOUT = httpx.Timeout(90.0, connect=5.0)
_MOST_DELAY_S = 3.0
_TRANSIENT_STATUSES = frozenset({429, 502, 503, 504})


class ClientError(Exception):
    """The server refused, or could not be reached.

    Attributes:
        code: the server's stable word for it, or `unreachable`, `bad_answer`, `bad_address`,
            `bad_token`.
        detail: one sentence with what to do.
        status: HTTP status; null without an answer.
        transient: the same request may go well later.
        retry_after_s: how long the server asked to wait.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        status: int | None = None,
        transient: bool = False,
        retry_after_s: float = 0.0,
    ) -> None:
        super().__init__(f"{detail} [{code}]")
        self.code = code
        self.detail = detail
        self.status = status
        self.transient = transient
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Document:
    """An answer: the text exactly as it came, and what it says."""

    text: str
    data: dict[str, Any]


@dataclass(frozen=True)
class LogPart:
    """Part of a log."""

    text: str
    next_offset: int
    """Byte to go on at."""


@dataclass
class _Position:
    """Where a stream is taken up again."""

    last_id: str | None = None
    lost_at_s: float | None = None
    """When the connection was first seen to be gone, on the monotonic clock; null while it is
    there."""
    is_end: bool = False
    """The server said that nothing follows."""

    def seconds_lost(self) -> float:
        """Return for how long there has been no connection."""
        if self.lost_at_s is None:
            self.lost_at_s = time.monotonic()
        return time.monotonic() - self.lost_at_s


Params = Sequence[tuple[str, str]]


class Client:
    """A connection to one server. Use it in a `with` statement."""

    def __init__(self, server: str, *, transport: httpx.BaseTransport | None = None) -> None:
        """Take the base URL, and what carries requests where that isn't the network.

        The token comes from the environment alone: command lines are seen by all users.

        Raises:
            ClientError: it is no HTTP address, or ASSAY_TOKEN can't be a token.
        """
        self.server = server.rstrip("/")
        try:
            parts = urlsplit(self.server)
            is_address = parts.scheme in {"http", "https"} and bool(parts.hostname)
            # A proxy of the environment can't reach this machine's loopback.
            self._http = httpx.Client(
                base_url=self.server,
                timeout=_TIMEOUT,
                trust_env=not is_loopback(self.server),
                transport=transport,
                headers=_authorization(os.environ.get("ASSAY_TOKEN", "").strip()),
            )
        except (httpx.InvalidURL, ValueError):
            is_address = False
        if not is_address:
            msg = f"{server!r} is no server address: write it like http://127.0.0.1:8321"
            raise ClientError("bad_address", msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """Return whether the server answers and says that it can work."""
        try:
            return self._http.get("/readyz", timeout=5.0).is_success
        except httpx.HTTPError:
            return False

    def submit(self, request: Mapping[str, Any]) -> Document:
        """Ask for a job and return it."""
        return self._document("POST", "/v1/jobs", body=request)

    def job(self, job_id: str) -> Document:
        """Return a job."""
        return self._document("GET", _path(job_id))

    def nodes(self, job_id: str) -> Document:
        """Return how even its ranks are."""
        return self._document("GET", _path(job_id, "nodes"))

    def jobs(self, params: Params) -> Document:
        """Return one page of the list of jobs."""
        return self._document("GET", "/v1/jobs", params=params)

    def comparison(self, baseline: str, candidate: str) -> Document:
        """Return two jobs side by side."""
        params = [("baseline", baseline), ("candidate", candidate)]
        return self._document("GET", "/v1/comparisons", params=params)

    def gate(self, request: Mapping[str, Any]) -> Document:
        """Return the verdict on a candidate."""
        return self._document("POST", "/v1/gates/evaluations", body=request)

    def promote(self, name: str, job_id: str) -> Document:
        """Make a job the baseline of this name and return that."""
        path = f"/v1/baselines/{quote(name, safe='')}"
        return self._document("PUT", path, body={"job": job_id})

    def set_commit(self, job_id: str, target: Mapping[str, Any]) -> Document:
        """Report a job to a commit and return that."""
        return self._document("PUT", _path(job_id, "commit"), body=target)

    def cancel(self, job_id: str) -> Document:
        """Ask for the end of a job and return it."""
        return self._document("POST", _path(job_id, "cancel"))

    def retry(self, job_id: str) -> Document:
        """Ask for another attempt at a job and return the job."""
        return self._document("POST", _path(job_id, "retry"))

    def log(self, job_id: str, *, attempt: int, offset: int, node: int = 0) -> LogPart:
        """Return a node's log of an attempt from byte `offset` on, or the first part of that."""
        params = [("attempt", str(attempt)), ("node", str(node)), ("offset", str(offset))]
        with self._answer("GET", _path(job_id, "logs"), params=params) as response:
            text = response.read().decode(errors="replace")
            return LogPart(text, int(response.headers["Next-Offset"]))

    def follow(
        self,
        job_id: str,
        *,
        patience_s: float = 300.0,
        first_delay_s: float = 0.25,
        on_away: Callable[[str], None] | None = None,
    ) -> Iterator[Event]:
        """Yield the events of a job until it has ended.

        A broken stream is taken up again after the last event seen, so a restart of the server
        shows as a pause.

        Args:
            job_id: the job.
            patience_s: most seconds of lost connections without an event before giving up.
            first_delay_s: before the first new try; it doubles with each.
            on_away: told why, each time the stream is lost.

        Raises:
            ClientError: the server refuses, or is away for longer than `patience_s`.
        """
        position = _Position()
        delay_s = first_delay_s
        while True:
            try:
                for event in self._events(job_id, position):
                    delay_s = first_delay_s
                    yield event
                if position.is_end:
                    return
                away = ClientError("unreachable", "the server ended the stream", transient=True)
            except ClientError as error:
                away = error
            if not away.transient or position.seconds_lost() > patience_s:
                raise away
            if on_away is not None:
                on_away(away.detail)
            time.sleep(max(delay_s, min(away.retry_after_s, patience_s)))
            delay_s = min(2 * delay_s, _MOST_DELAY_S)

    def _events(self, job_id: str, position: _Position) -> Iterator[Event]:
        """Yield events from `position` on, and move it, until the stream ends."""
        headers = {"Accept": "text/event-stream"}
        if position.last_id is not None:
            headers["Last-Event-ID"] = position.last_id
        parser = EventParser()
        with self._answer(
            "GET", _path(job_id, "events"), headers=headers, timeout=_STREAM_TIMEOUT
        ) as response:
            position.is_end = response.status_code == httpx.codes.NO_CONTENT
            for chunk in response.iter_bytes():
                position.lost_at_s = None  # heartbeats count too
                try:
                    for event in parser.feed(chunk):
                        position.last_id = event.id or position.last_id
                        # A terminal state alone is no end: a job that was retried has had one.
                        position.is_end = event.type == "end"
                        yield event
                        if position.is_end:
                            return
                except ValueError as error:
                    msg = f"{self.server} sent an event that can't be read: {error}"
                    raise ClientError("bad_answer", msg) from error

    def _document(
        self,
        method: str,
        path: str,
        *,
        params: Params = (),
        body: Mapping[str, Any] | None = None,
    ) -> Document:
        with self._answer(method, path, params=params, body=body) as response:
            text = response.read().decode(errors="replace")
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if not isinstance(data, dict):
            msg = f"{self.server} did not answer in JSON: is this an Assay server?"
            raise ClientError("bad_answer", msg)
        return Document(text, data)

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        *,
        params: Params = (),
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> Iterator[httpx.Response]:
        """Give the answer of a request; whatever goes wrong becomes a ClientError."""
        try:
            with self._http.stream(
                method, path, params=list(params), json=body, headers=headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise self._refusal(response)
                yield response
        except httpx.ConnectError as error:
            msg = (
                f"no server answers at {self.server}: start one with `assay serve`, or name "
                "another with --server or ASSAY_SERVER"
            )
            raise ClientError("unreachable", msg, transient=True) from error
        except httpx.TimeoutException as error:
            msg = f"{self.server} did not answer in time: look at its log, then try again"
            raise ClientError("unreachable", msg, transient=True) from error
        except httpx.HTTPError as error:
            msg = f"the connection to {self.server} broke ({error}): try again"
            raise ClientError("unreachable", msg, transient=True) from error

    def _refusal(self, response: httpx.Response) -> ClientError:
        status = response.status_code
        try:
            problem = response.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or "title" not in problem:
            problem = {"title": f"{self.server} answered with HTTP {status}"}
        wait = response.headers.get("Retry-After", "")
        return ClientError(
            str(problem.get("code", f"http_{status}")),
            _sentence(problem),
            status=status,
            transient=status in _TRANSIENT_STATUSES,
            retry_after_s=float(wait) if wait.isdecimal() else 0.0,
        )


def is_loopback(server: str) -> bool:
    """Return whether `server` is on this machine and so sees the same files."""
    try:
        host = urlsplit(server).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _authorization(token: str) -> dict[str, str]:
    if not token:
        return {}
    if not (token.isascii() and token.isprintable()) or " " in token:
        msg = "ASSAY_TOKEN is no token: copy what `assay token create` printed"
        raise ClientError("bad_token", msg)
    return {"Authorization": f"Bearer {token}"}


def _path(job_id: str, *more: str) -> str:
    return "/".join(("/v1/jobs", quote(job_id, safe=""), *more))


def _sentence(problem: Mapping[str, Any]) -> str:
    """Return what an RFC 9457 problem says, in one line: its detail, or all places if several."""
    places = [
        f"{place.get('pointer') or place.get('in')}: {place.get('detail')}"
        for place in problem.get("errors") or ()
        if isinstance(place, dict)
    ]
    if len(places) > 1:
        return "; ".join(places)
    return str(problem.get("detail") or problem["title"])
