"""Sends one message once, and says what came of it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from app.notify.addresses import AddressNotAllowed, Network
from app.notify.transport import CheckedTransport

RESPONSE_MAX_BYTES = 2048
"""Kept of an answer's body; the rest is not read."""
_CONNECT_TIMEOUT_SECONDS = 5.0
_BODY_TIMEOUT_SECONDS = 2.0
"""For the beginning of an answer's body; its status has come by then, and counts."""
_WORDS_MAX_CHARS = 400
_ASKS_TO_WAIT = (
    httpx.codes.FORBIDDEN,  # GitHub, beside the two that are meant for it
    httpx.codes.TOO_MANY_REQUESTS,
    httpx.codes.SERVICE_UNAVAILABLE,
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one try."""

    latency_s: float
    error: str | None = None
    """Why it does not count as delivered; null if it does."""
    status_code: int | None = None
    response: str | None = None
    retry_after_s: float | None = None
    """What the receiver asked for."""

    @property
    def is_gone(self) -> bool:
        """Whether the receiver wants no more messages."""
        return self.status_code == httpx.codes.GONE


@dataclass(frozen=True)
class _Answer:
    status_code: int
    headers: httpx.Headers
    body: str


class Sender:
    """Sends to checked addresses, with a limit on time and on what is read."""

    def __init__(self, allowed: Sequence[Network], timeout_s: float) -> None:
        """Take the networks that are allowed although they are not public."""
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            transport=CheckedTransport(allowed),
            timeout=httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_SECONDS),
            headers={
                "User-Agent": "assay",
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",  # nothing is unpacked
            },
            trust_env=False,  # a proxy would connect to addresses that were not checked
        )

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> Outcome:
        """Post `body`; whatever goes wrong is in the outcome."""
        began = time.monotonic()
        answer: _Answer | None = None
        try:
            answer = await self._post(url, headers, body)
            error = _complaint(answer)
        except TimeoutError:
            error = f"no answer within {self._timeout_s:g} s"
        except (AddressNotAllowed, httpx.HTTPError, httpx.InvalidURL) as refused:
            error = f"{type(refused).__name__}: {refused}"
        latency_s = time.monotonic() - began
        if answer is None:
            return Outcome(latency_s=latency_s, error=error and error[:_WORDS_MAX_CHARS])
        return Outcome(
            latency_s=latency_s,
            error=error and error[:_WORDS_MAX_CHARS],
            status_code=answer.status_code,
            response=answer.body,
            retry_after_s=_retry_after_s(answer),
        )

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        request = self._client.stream("POST", url, headers=headers, content=body)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._timeout_s):
                response = await stack.enter_async_context(request)
            beginning = await _read_beginning(response)
            return _Answer(response.status_code, response.headers, beginning)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def _read_beginning(response: httpx.Response) -> str:
    """Return the beginning of the body, or as much of it as comes."""
    read = b""
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_SECONDS):
            async for chunk in response.aiter_raw():
                read += chunk
                if len(read) >= RESPONSE_MAX_BYTES:
                    break
    except (httpx.HTTPError, TimeoutError) as error:
        read += f" (broken off: {type(error).__name__})".encode()
    return read[:RESPONSE_MAX_BYTES].decode(errors="replace")


def _complaint(answer: _Answer) -> str | None:
    """Say why an answer does not count as delivered."""
    status = answer.status_code
    if httpx.codes.is_success(status):
        return None
    if httpx.codes.is_redirect(status):
        where = answer.headers.get("location", "nowhere")
        return f"answered {status} to {where}: redirects are not followed, change the URL"
    return f"answered {status}"


def _retry_after_s(answer: _Answer) -> float | None:
    """Return the seconds that a receiver asks to wait, written as such or as a time."""
    if answer.status_code not in _ASKS_TO_WAIT:
        return None
    written = answer.headers.get("retry-after", "").strip()
    if _is_number(written):
        return float(written[:9])
    if not written:
        return _seconds_to_reset(answer.headers)
    try:
        at = parsedate_to_datetime(written)
    except ValueError:
        return None
    return max(0.0, (at.astimezone(UTC) - datetime.now(UTC)).total_seconds())


def _seconds_to_reset(headers: httpx.Headers) -> float | None:
    """Return the seconds until there are requests left again, where none are."""
    reset = headers.get("x-ratelimit-reset", "").strip()
    if headers.get("x-ratelimit-remaining", "").strip() != "0" or not _is_number(reset):
        return None
    return max(0.0, float(reset[:11]) - time.time())


def _is_number(written: str) -> bool:
    return written.isascii() and written.isdecimal()
