"""GET /v1/comparisons and GET /v1/jobs/{id}/windows."""

import gzip
import hashlib
import json
import math
from base64 import b64encode
from pathlib import Path

import httpx
import pytest

from app.api.deps import Parts
from app.api.records import accepts_gzip
from app.api.schemas import ComparisonView
from evaluator.contract.env import TOKENS_FILE, WINDOWS_FILE
from evaluator.contract.reports import WindowRecord
from tests.api.factories import DIGEST, make_job, result, score, submit
from tests.api.test_problems import check_problem
from tests.support.records import content_of, digest_of, record

BASELINE = (record(0, 0, 2, 1.0, 9), record(0, 2, 2, 1.0, 0), record(4, 0, 1, 3.0, 5))
CANDIDATE = (record(0, 0, 2, 2.0, 9), record(0, 2, 2, 2.0, 0), record(4, 0, 1, 2.0, 5))
OTHER = "sha256:" + "1" * 64


async def score_summed(
    client: httpx.AsyncClient, parts: Parts, records: tuple[WindowRecord, ...], **changes: object
) -> str:
    """A job whose result says what its records sum to."""
    figures = result(1)["perplexity"] | {
        "nll_sum_nats": math.fsum(each.nll_nats for each in records),
        "num_scored_tokens": sum(each.num_scored for each in records),
    }
    return await score(client, parts, records, perplexity=figures, **changes)


async def compare(client: httpx.AsyncClient, baseline: str, candidate: str) -> httpx.Response:
    return await client.get(
        "/v1/comparisons", params={"baseline": baseline, "candidate": candidate}
    )


def path_of(parts: Parts, job_id: str) -> Path:
    return parts.settings.runs_dir / job_id / "1" / WINDOWS_FILE


async def test_two_jobs_are_compared_by_window(client: httpx.AsyncClient, parts: Parts) -> None:
    baseline = await score_summed(client, parts, BASELINE)
    candidate = await score_summed(client, parts, CANDIDATE, model_digest=OTHER)
    answer = await compare(client, baseline, candidate)
    assert answer.status_code == 200, answer.text
    found = ComparisonView.model_validate(answer.json())
    assert (found.baseline.job, found.baseline.value) == (baseline, 1.0)
    assert (found.candidate.job, found.candidate.value) == (candidate, 1.2)
    # worked by hand in tests/unit/test_comparison.py
    assert found.difference == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(0.48)
    assert (found.unit, found.num_pairs, found.clusters, found.num_clusters) == (
        ("window", 3, "documents", 2)
    )
    assert [each.name for each in found.differs] == ["model"]
    back = (await compare(client, candidate, baseline)).json()
    assert back["difference"] == pytest.approx(-0.2)
    assert (back["wins"], back["losses"]) == (2, 1)


async def test_another_tokenizer_gives_bits_per_byte(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    baseline = await score_summed(client, parts, BASELINE)
    candidate = await score_summed(client, parts, CANDIDATE[::2], tokenizer_digest=OTHER)
    found = (await compare(client, baseline, candidate)).json()
    assert (found["measure"], found["unit"], found["denominator"]) == (
        ("bits_per_byte", "document", 14)
    )
    assert found["difference"] == pytest.approx(-1 / 14 / math.log(2))


async def test_another_text_is_refused(client: httpx.AsyncClient, parts: Parts) -> None:
    baseline = await score_summed(client, parts, BASELINE)
    candidate = await score_summed(client, parts, CANDIDATE, data_digest=OTHER)
    problem = check_problem(await compare(client, baseline, candidate), 409, "not_comparable")
    assert DIGEST in problem["detail"]
    assert OTHER in problem["detail"]


async def test_both_have_to_be_there_and_done(client: httpx.AsyncClient, parts: Parts) -> None:
    done, waits = await score_summed(client, parts, BASELINE), (await submit(client))["id"]
    problem = check_problem(await compare(client, done, waits), 404, "result_not_ready")
    assert waits in problem["detail"]
    for unknown in ("job_" + "0" * 26, "nope", ""):
        check_problem(await compare(client, unknown, done), 404, "job_not_found")
    answer = await client.get("/v1/comparisons", params={"baseline": done})
    problem = check_problem(answer, 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/candidate"


async def test_records_that_are_gone_damaged_or_of_another_run_are_refused(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await score_summed(client, parts, BASELINE)
    path = path_of(parts, job)
    whole = path.read_bytes()
    for content, says in (
        (whole[: len(whole) // 2], "can't be read"),
        (b"{}\n", "can't be read"),
        (b"", "digest"),
        (gzip.compress(content_of(CANDIDATE)), "digest"),
    ):
        path.write_bytes(content)
        problem = check_problem(await compare(client, job, job), 409, "records_missing")
        assert says in problem["detail"], content
        check_problem(await client.get(f"/v1/jobs/{job}/windows"), 409, "records_missing")
    path.unlink()
    problem = check_problem(await compare(client, job, job), 409, "records_missing")
    assert job in problem["detail"]


async def test_records_must_sum_to_the_ledger(client: httpx.AsyncClient, parts: Parts) -> None:
    other = (*BASELINE[:2], record(4, 0, 1, 3.5, 5))
    job = await score_summed(client, parts, BASELINE, windows_digest=digest_of(other))
    path_of(parts, job).write_bytes(gzip.compress(content_of(other)))
    problem = check_problem(await compare(client, job, job), 409, "records_missing")
    assert "sums to (5.5, 5), the ledger to (5.0, 5)" in problem["detail"]


async def test_records_come_plain_or_compressed(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await score_summed(client, parts, BASELINE)
    path, digest = f"/v1/jobs/{job}/windows", digest_of(BASELINE)
    for accepted, tag, encoding in (
        ("identity", f'"{digest}"', None),
        ("gzip;q=0", f'"{digest}"', None),
        ("gzip, br", f'"{digest}-gzip"', "gzip"),
    ):
        answer = await client.get(path, headers={"Accept-Encoding": accepted})
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers.get("content-encoding") == encoding
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["etag"] == tag
        assert answer.content == content_of(BASELINE)  # the client has unpacked it
        assert [json.loads(line)["nll_nats"] for line in answer.text.splitlines()] == [1, 1, 3]
        known = {"Accept-Encoding": accepted, "If-None-Match": tag}
        again = await client.get(path, headers=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    shown = (await client.get(f"/v1/jobs/{job}")).json()
    assert shown["links"]["windows"] == path
    assert shown["result"]["digests"]["windows"] == digest


async def test_the_file_of_tokens_is_checked_before_it_is_sent(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    content = b"PK as numpy writes it"
    digest = hashlib.sha256(content)
    tokens_digest = f"sha256:{digest.hexdigest()}"
    job = await score(client, parts, BASELINE, tokens_digest=tokens_digest)
    path = path_of(parts, job).with_name(TOKENS_FILE)
    address = f"/v1/jobs/{job}/tokens"
    check_problem(await client.get(address), 409, "records_missing")
    path.write_bytes(content[:-1])
    problem = check_problem(await client.get(address), 409, "records_missing")
    assert "tokens.npz is damaged" in problem["detail"]
    path.write_bytes(content)
    answer = await client.get(address)
    assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["content-length"] == str(len(content))
    assert answer.headers["etag"] == f'"{tokens_digest}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{b64encode(digest.digest()).decode()}:"
    again = await client.get(address, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    shown = (await client.get(f"/v1/jobs/{job}")).json()
    assert shown["result"]["digests"]["tokens"] == tokens_digest


async def test_tokens_that_were_not_asked_for(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await score(client, parts, BASELINE)
    problem = check_problem(await client.get(f"/v1/jobs/{job}/tokens"), 404, "tokens_not_kept")
    assert "outputs.token_nll" in problem["detail"]


@pytest.mark.parametrize("state", ["queued", "running", "failed"])
async def test_there_are_no_records_before_the_result(
    client: httpx.AsyncClient, parts: Parts, state: str
) -> None:
    job = await make_job(client, parts, state)
    for kind in ("windows", "tokens"):
        answer = await client.get(f"/v1/jobs/{job}/{kind}")
        check_problem(answer, 404, "result_not_ready")


@pytest.mark.parametrize(
    ("written", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP ; q=0.5, br", True),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("deflate, br", False),
        ("gzip;q=high", False),
    ],
)
def test_gzip_is_sent_where_it_is_accepted(written: str, accepted: bool) -> None:
    assert accepts_gzip(written) is accepted
