"""GET /v1/jobs/{id}/logs: offsets, tails, and bytes that are no text."""

from pathlib import Path

import httpx
import pytest

from app.api.deps import Parts
from app.jobs.transitions import JobEvent
from app.launchers.rundir import latest_log, log_name
from tests.api.factories import claim, make_job, settle, submit


@pytest.fixture
async def job_id(client: httpx.AsyncClient, parts: Parts) -> str:
    """A job whose first attempt was launched."""
    job = await submit(client)
    await claim(parts, job["id"])
    return str(job["id"])


@pytest.fixture
def log(parts: Parts, job_id: str) -> Path:
    """Where the log of its first attempt goes."""
    folder = parts.settings.runs_dir / job_id / "1"
    folder.mkdir(parents=True)
    return folder / log_name(0)


async def get(client: httpx.AsyncClient, job_id: str, **query: int) -> httpx.Response:
    answer = await client.get(f"/v1/jobs/{job_id}/logs", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer


@pytest.mark.parametrize("state", ["queued", "starting", "cancelled"])
async def test_before_there_is_a_log_it_is_empty(
    client: httpx.AsyncClient, parts: Parts, state: str
) -> None:
    job_id = await make_job(client, parts, state)
    for query in ({}, {"tail": 5}, {"offset": 0, "limit": 100}):
        answer = await get(client, job_id, **query)
        assert (answer.content, answer.headers["next-offset"]) == (b"", "0")


async def test_a_log_is_followed_by_offset(
    client: httpx.AsyncClient, job_id: str, log: Path
) -> None:
    log.write_bytes(b"one\ntwo\n")
    answer = await get(client, job_id)
    assert (answer.text, answer.headers["next-offset"]) == ("one\ntwo\n", "8")
    assert (await get(client, job_id, offset=8)).text == ""
    with log.open("ab") as file:
        file.write(b"three\n")
    answer = await get(client, job_id, offset=8)
    assert (answer.text, answer.headers["next-offset"]) == ("three\n", "14")
    assert (await get(client, job_id, offset=4, limit=4)).text == "two\n"
    answer = await get(client, job_id, offset=1000)
    assert (answer.text, answer.headers["next-offset"]) == ("", "1000")


async def test_a_character_is_never_cut_in_two(
    client: httpx.AsyncClient, job_id: str, log: Path
) -> None:
    text = "aé€\U0001f600" * 50
    log.write_bytes(text.encode())
    for limit in (4, 5, 7):
        found, offset = "", 0
        while offset < len(text.encode()):
            answer = await get(client, job_id, offset=offset, limit=limit)
            assert int(answer.headers["next-offset"]) > offset
            found, offset = found + answer.text, int(answer.headers["next-offset"])
        assert found == text


async def test_a_character_that_is_being_written_is_waited_for(
    client: httpx.AsyncClient, parts: Parts, job_id: str, log: Path
) -> None:
    log.write_bytes(b"price \xe2\x82")
    answer = await get(client, job_id)
    assert (answer.text, answer.headers["next-offset"]) == ("price ", "6")
    await settle(parts, job_id, JobEvent.FAIL)
    answer = await get(client, job_id)
    assert (answer.text, answer.headers["next-offset"]) == ("price �", "8")


async def test_bytes_that_are_no_text_are_replaced(
    client: httpx.AsyncClient, job_id: str, log: Path
) -> None:
    log.write_bytes(b"\xff\x00\r50%\r100%\x1b[31mred\n" + b"x" * 1_000_000 + b"\xc3\n")
    answer = await get(client, job_id)
    assert answer.text.startswith("�\x00\r50%\r100%\x1b[31mred\n")
    assert answer.text.endswith("x�\n")
    answer = await get(client, job_id, tail=1)
    assert answer.text.endswith("x�\n")


async def test_the_last_lines(client: httpx.AsyncClient, job_id: str, log: Path) -> None:
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    answer = await get(client, job_id, tail=2)
    assert answer.text == "line 9998\nline 9999\n"
    assert int(answer.headers["next-offset"]) == log.stat().st_size
    assert (await get(client, job_id, tail=0)).text == ""
    assert (await get(client, job_id, tail=10_000, limit=20)).text.endswith("line 9999\n")
    log.write_text("a\nunfinished")
    assert (await get(client, job_id, tail=1)).text == "unfinished"


async def test_the_last_lines_of_a_full_log_are_the_newest(
    client: httpx.AsyncClient, job_id: str, log: Path
) -> None:
    log.write_text("old\n")
    latest_log(log).write_text("newer\nnewest\n")
    answer = await get(client, job_id, tail=1)
    assert (answer.text, answer.headers["next-offset"]) == ("newest\n", "4")


async def test_each_attempt_has_its_own_log(
    client: httpx.AsyncClient, parts: Parts, job_id: str, log: Path
) -> None:
    log.write_text("first\n")
    await settle(parts, job_id, JobEvent.REQUEUE)
    await claim(parts, job_id)
    assert (await get(client, job_id)).text == ""
    assert (await get(client, job_id, attempt=1)).text == "first\n"
    answer = await client.get(f"/v1/jobs/{job_id}/logs", params={"attempt": 3})
    assert (answer.status_code, answer.json()["code"]) == (404, "attempt_not_found")


@pytest.mark.parametrize(
    "query",
    [
        "offset=-1",
        "offset=9223372036854775808",
        "limit=0",
        "limit=1048577",
        "tail=-1",
        "tail=x",
        "attempt=0",
        "attempt=9223372036854775808",
        "offset=0&tail=1",
        "lines=5",
    ],
)
async def test_a_query_that_makes_no_sense_is_422(
    client: httpx.AsyncClient, job_id: str, query: str
) -> None:
    answer = await client.get(f"/v1/jobs/{job_id}/logs?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
