"""Jobs in every state: made through the API where that can be, by the job core where it can't."""

from collections.abc import Sequence
from typing import Any

import httpx

from app.api.deps import Parts
from app.ids import hash_token, new_id, new_token
from app.jobs.repository import load_attempts, load_job, move, utcnow
from app.jobs.transitions import JobEvent
from app.models import Attempt
from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.reports import WindowRecord
from evaluator.contract.states import FailureReason
from tests.support.records import digest_of, record, write_records

Json = dict[str, Any]

DIGEST = "sha256:" + "0" * 64
PLAN: Json = {
    "digest": DIGEST,
    "num_documents": 1,
    "num_windows": 2,
    "num_batches": 2,
    "num_input_tokens": 24,
    "num_scored_tokens": 20,
}
RECORDS = (record(0, 0, 10, 12.5, 13), record(0, 10, 10, 12.5, 0))


def job_request(**changes: Any) -> Json:
    """A request that the server of these tests takes."""
    return {
        "model": {"kind": "folder", "path": "tiny"},
        "data": {"kind": "text", "path": "text.txt"},
        **changes,
    }


async def submit(client: httpx.AsyncClient, **changes: Any) -> Json:
    """A queued job, as the API shows it."""
    answer = await client.post("/v1/jobs", json=job_request(**changes))
    assert answer.status_code == 202, answer.text
    job: Json = answer.json()
    return job


async def claim(parts: Parts, job_id: str) -> tuple[str, str]:
    """Do what the dispatcher does; return id and token of the attempt."""
    token = new_token()
    async with parts.database.write() as session:
        job = await load_job(session, job_id, lock=True)
        job.attempt += 1
        job.attempts_left -= 1
        job.started_at = job.started_at or utcnow()
        attempt = Attempt(
            id=new_id("att"),
            job_id=job_id,
            number=job.attempt,
            launch_id=new_id("launch"),
            token_hash=hash_token(token),
            gpus=[],
            created_at=utcnow(),
        )
        session.add(attempt)
        await session.flush()
        move(session, job, JobEvent.CLAIM)
    return attempt.id, token


async def settle(parts: Parts, job_id: str, *events: JobEvent) -> None:
    """End the current attempt, as the reconciler does, and move the job."""
    failed = JobEvent.FAIL in events
    async with parts.database.write() as session:
        job = await load_job(session, job_id, lock=True)
        for attempt in await load_attempts(session, job_id):
            attempt.ended_at = attempt.ended_at or utcnow()
            attempt.exit_code = 1 if failed else 0
            attempt.reason = FailureReason.RANK_DIED if failed else None
        if failed:
            job.state_reason, job.message = FailureReason.RANK_DIED, "rank 0 died of signal 9"
        for event in events:
            move(session, job, event)


def timing(rank: int = 0, **changes: Any) -> Json:
    """A contract `RankTiming`: 10 scored tokens in half a second."""
    return {
        "rank": rank,
        "local_rank": rank,
        "node_rank": 0,
        "load_s": 1.5,
        "compute_s": 0.25,
        "wait_s": 0.125,
        "communicate_s": 0.125,
        "wall_s": 2.5,
        "num_scored_tokens": 10,
        **changes,
    }


def hello(seq: int = 1, rank: int = 0) -> Json:
    """The first report of a rank."""
    return {
        "type": "hello",
        "rank": rank,
        "seq": seq,
        "local_rank": rank,
        "node_rank": 0,
        "world_size": 1,
        "host": "node-a",
        "pid": 4242,
        "device": "cpu",
        "versions": {"python": "3.11.7"},
    }


def plan(seq: int = 2) -> Json:
    """The report of the plan."""
    return {"type": "plan", "rank": 0, "seq": seq, "plan": PLAN}


def progress(seq: int, batch: int, nll: float = 12.5, num_scored: int = 10) -> Json:
    """The report of one finished batch of one window."""
    entry = {
        "batch": batch,
        "nll_nats": [nll],
        "nll_squares": [nll * nll],
        "nll_by_context": [nll],
        "num_scored": [num_scored],
    }
    return {
        "type": "progress",
        "rank": 0,
        "seq": seq,
        "stage": "score",
        "timing": timing(),
        "entries": [entry],
    }


def node_timing(seq: int) -> Json:
    """The final times of the node."""
    return {
        "type": "node_timing",
        "rank": 0,
        "seq": seq,
        "node_rank": 0,
        "host": "node-a",
        "ranks": [timing()],
    }


FIGURES: Json = {
    "token_perplexity": 3.4903429574618414,  # exp(1.25)
    "token_perplexity_standard_error": None,
    "token_perplexity_interval_95": None,
    "mean_nll_nats": 1.25,
    "mean_nll_standard_error": None,
    "standard_error_clusters": "documents",
    "windows_per_block": None,
    "num_clusters": 1,
    "bits_per_byte": 2.7743,
    "nll_sum_nats": 25.0,
    "num_scored_tokens": 20,
    "num_tokens": 20,
    "num_bytes": 13,
    "num_documents": 1,
    "num_windows": 2,
    "excluded_documents": {},
    "excluded_tokens": {},
    "naive_standard_error": 0.0,
    "byte_perplexity": 6.842,
    "word_perplexity": 4160.26,
    "word_rule": "split at whitespace",
    "num_words": 3,
    "num_replaced": 0,
}


EFFICIENCY: Json = {
    "num_forwards": 3,
    "num_fed_tokens": 25,
    "num_head_positions": 20,
    "padding_share": 0.0,
    "fed_tokens_per_scored_token": 1.25,
    "waiting_share": 0.25,
    "processor_share": 0.95,
    "operations_per_second": 6e10,
    "peak_operations_per_second": 8e10,
    "bytes_per_second": 1e9,
    "peak_bytes_per_second": 1e10,
    "peak_share": 0.75,
    "bandwidth_share": 0.1,
    "bound": "compute",
    "why_unknown": None,
}


def result(seq: int) -> Json:
    """The result: 25 nats over 20 tokens."""
    return {
        "type": "result",
        "rank": 0,
        "seq": seq,
        "perplexity": FIGURES,
        "nll_by_context": [],
        "tokens_digest": None,
        "audit": {
            "num_windows": 2,
            "num_unchecked_batches": 0,
            "tolerance": 0.0,
            "largest_difference": 0.0,
            "quarantined": [],
            "why_none": None,
        },
        "sync_error": 0.0,
        "traffic": {},
        "packed": None,
        "scoring": {
            "convention": "lm-eval",
            "window": 12,
            "stride": 12,
            "batch_tokens": 2048,
            "prefix": "bos",
            "prefix_token_id": 1,
            "prefix_place": "first",
            "special_tokens": "text",
            "join": None,
            "tail": None,
            "definition": "Every token is scored once.",
        },
        "plan": PLAN,
        "model_digest": DIGEST,
        "data_digest": DIGEST,
        "windows_digest": digest_of(RECORDS),
        "tokenizer_digest": DIGEST,
        "device": "cpu",
        "dtype": "float32",
        "threads_per_rank": 1,
        "world_size": 1,
        "parallelism": {},
        "num_batches_resumed": 0,
        "efficiency": EFFICIENCY,
        "wall_s": 2.5,
        "versions": {"torch": "2.13.0"},
        "warnings": [],
    }


async def post_reports(
    client: httpx.AsyncClient, attempt: tuple[str, str], *reports: Json
) -> httpx.Response:
    """Report as a rank does."""
    attempt_id, token = attempt
    return await client.post(
        f"/v1/attempts/{attempt_id}/reports",
        json={"contract_version": CONTRACT_VERSION, "reports": reports},
        headers={"Authorization": f"Bearer {token}"},
    )


async def run_to_the_end(client: httpx.AsyncClient, parts: Parts, job_id: str) -> None:
    """Let a queued job succeed."""
    attempt = await claim(parts, job_id)
    reports = (hello(1), plan(2), progress(3, 0), progress(4, 1), node_timing(5), result(6))
    answer = await post_reports(client, attempt, *reports)
    assert answer.status_code == 204, answer.text
    write_records(parts.settings.runs_dir / job_id / "1", RECORDS)
    await settle(parts, job_id, JobEvent.SUCCEED)


async def score(
    client: httpx.AsyncClient, parts: Parts, records: Sequence[WindowRecord], **changes: Any
) -> str:
    """The id of a job that succeeded with these windows; `changes` are of its result."""
    job_id: str = (await submit(client))["id"]
    attempt = await claim(parts, job_id)
    end = result(len(records) + 2)
    end |= {"windows_digest": digest_of(records), **changes}
    windows = [
        progress(number + 2, number, each.nll_nats, each.num_scored)
        for number, each in enumerate(records)
    ]
    answer = await post_reports(client, attempt, hello(1), *windows, end)
    assert answer.status_code == 204, answer.text
    write_records(parts.settings.runs_dir / job_id / "1", records)
    await settle(parts, job_id, JobEvent.SUCCEED)
    return job_id


async def make_job(client: httpx.AsyncClient, parts: Parts, state: str) -> str:
    """The id of a job in `state`."""
    job_id: str = (await submit(client))["id"]
    if state == "succeeded":
        await run_to_the_end(client, parts, job_id)
    elif state == "cancelled":
        await client.post(f"/v1/jobs/{job_id}/cancel")
    elif state != "queued":
        attempt = await claim(parts, job_id)
        if state in ("running", "finishing"):
            await post_reports(client, attempt, hello(1), plan(2))
        if state == "finishing":
            await post_reports(client, attempt, progress(3, 0), progress(4, 1), result(5))
        if state == "cancelling":
            await client.post(f"/v1/jobs/{job_id}/cancel")
        ends = {"failed": JobEvent.FAIL, "timed_out": JobEvent.TIME_OUT, "lost": JobEvent.LOSE}
        if state in ends:
            await settle(parts, job_id, ends[state])
    shown = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert shown["state"] == state
    return job_id
