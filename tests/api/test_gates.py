"""POST /v1/gates/evaluations and /v1/baselines."""

import asyncio
import math
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from app.api.deps import Parts
from app.api.gate_schemas import BaselineView, GateView
from app.jobs.repository import load_job
from app.models import Attempt, JobLabel, Rank
from evaluator.contract.reports import WindowRecord
from tests.api.factories import Json, make_job, submit
from tests.api.test_comparisons import OTHER, score_summed
from tests.api.test_problems import check_problem

PERPLEXITY = {"kind": "perplexity"}


def records(*nats: float) -> tuple[WindowRecord, ...]:
    """Documents of 100 tokens, as in docs/gates.md."""
    return tuple(
        WindowRecord(document=n, begin=0, num_scored=100, nll_nats=300.0 + more, num_bytes=400)
        for n, more in enumerate(nats)
    )


SAME, UNCLEAR, WORSE = records(0, 0, 0), records(0.0, 0.3, 0.6), records(0.2, 0.4, 0.6)


async def ask(client: httpx.AsyncClient, candidate: str, baseline: Json, *rules: Json) -> Any:
    body = {"candidate": candidate, "baseline": baseline, "rules": rules or [PERPLEXITY]}
    return await client.post("/v1/gates/evaluations", json=body)


async def verdict_of(
    client: httpx.AsyncClient, candidate: str, baseline: Json, *rules: Json
) -> GateView:
    answer = await ask(client, candidate, baseline, *rules)
    assert answer.status_code == 200, answer.text
    return GateView.model_validate(answer.json())


async def label(parts: Parts, job_id: str, **labels: str) -> None:
    async with parts.database.write() as session:
        await load_job(session, job_id, lock=True)
        session.add_all(JobLabel(job_id=job_id, key=k, value=v) for k, v in labels.items())


async def test_a_job_is_judged_against_another(client: httpx.AsyncClient, parts: Parts) -> None:
    baseline = await score_summed(client, parts, SAME)
    named = {"kind": "job", "job": baseline}
    worse = await verdict_of(
        client, await score_summed(client, parts, WORSE, model_digest=OTHER), named
    )
    assert (worse.verdict, worse.baseline) == ("regression", baseline)
    assert worse.sentence == worse.outcomes[0].sentence
    assert [each.name for each in worse.differs] == ["model"]
    unclear = await score_summed(client, parts, UNCLEAR)
    found = await verdict_of(client, unclear, named)
    numbers = found.model_dump()["outcomes"][0]["numbers"]
    assert found.verdict == "inconclusive"
    # worked by hand in docs/gates.md
    assert numbers["baseline"] == pytest.approx(math.exp(3))
    assert round(numbers["lower_percent"], 3) == -0.206
    assert round(numbers["upper_percent"], 3) == 0.809
    assert numbers["num_more_tokens"] == 934
    strict = {"kind": "limit", "figure": "token_perplexity", "at_most": 1.5}
    assert (await verdict_of(client, unclear, named, PERPLEXITY, strict)).verdict == "regression"


async def test_a_promoted_job_is_the_default(client: httpx.AsyncClient, parts: Parts) -> None:
    first, second = [await score_summed(client, parts, SAME) for _ in range(2)]
    candidate = await score_summed(client, parts, SAME)
    body = {"candidate": candidate}
    found = (await client.post("/v1/gates/evaluations", json=body)).json()
    assert (found["verdict"], found["baseline"]) == ("missing_baseline", None)
    assert "promote" in found["sentence"]
    check_problem(await client.get("/v1/baselines/default"), 404, "baseline_not_found")
    answer = await client.put("/v1/baselines/default", json={"job": first})
    assert answer.status_code == 201
    assert BaselineView.model_validate(answer.json()).job == first
    assert (await client.get("/v1/baselines/default")).json() == answer.json()
    assert (await client.put("/v1/baselines/default", json={"job": second})).status_code == 200
    found = (await client.post("/v1/gates/evaluations", json=body)).json()
    assert (found["verdict"], found["baseline"]) == ("pass", second)


async def test_only_a_job_that_succeeded_is_promoted(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    waits = (await submit(client))["id"]
    for job, code in ((waits, "result_not_ready"), ("nope", "job_not_found")):
        answer = await client.put("/v1/baselines/default", json={"job": job})
        check_problem(answer, 404, code)
    done = await make_job(client, parts, "succeeded")
    answer = await client.put("/v1/baselines/a%20b", json={"job": done})
    assert check_problem(answer, 422, "invalid_request")["errors"][0]["in"] == "path"


async def test_promotions_at_once_leave_one(client: httpx.AsyncClient, parts: Parts) -> None:
    jobs = [await make_job(client, parts, "succeeded") for _ in range(4)]
    answers = await asyncio.gather(
        *(client.put("/v1/baselines/main", json={"job": job}) for job in jobs)
    )
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert (await client.get("/v1/baselines/main")).json()["job"] in jobs


async def test_the_newest_success_before_the_candidate_is_found_by_labels(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    main = {"kind": "newest", "labels": {"branch": "main", "family": "tiny"}}
    old, newer, other = [await score_summed(client, parts, SAME) for _ in range(3)]
    for job in (old, newer):
        await label(parts, job, branch="main", family="tiny")
    await label(parts, other, branch="main")
    await submit(client, labels=main["labels"])  # has not succeeded
    candidate = await score_summed(client, parts, SAME)
    await label(parts, candidate, branch="main", family="tiny")
    later = await score_summed(client, parts, SAME)
    await label(parts, later, branch="main", family="tiny")
    found = await verdict_of(client, candidate, main)
    assert (found.verdict, found.baseline) == ("pass", newer)
    found = await verdict_of(client, old, main)
    assert (found.verdict, found.baseline) == ("missing_baseline", None)
    assert "branch=main, family=tiny" in found.sentence


async def test_a_candidate_is_no_baseline_of_its_own(
    client: httpx.AsyncClient, parts: Parts
) -> None:
    job = await score_summed(client, parts, SAME)
    found = await verdict_of(client, job, {"kind": "job", "job": job})
    assert (found.verdict, found.baseline) == ("missing_baseline", None)
    assert "itself" in found.sentence


async def test_a_limit_alone_needs_no_baseline(client: httpx.AsyncClient, parts: Parts) -> None:
    job = await score_summed(client, parts, SAME)
    limit = {"kind": "limit", "figure": "bits_per_byte", "at_most": 3}
    found = await verdict_of(client, job, {"kind": "promoted"}, limit)
    assert (found.verdict, found.baseline) == ("pass", None)


async def test_what_can_not_be_judged_is_refused(client: httpx.AsyncClient, parts: Parts) -> None:
    done = await score_summed(client, parts, SAME)
    waits = (await submit(client))["id"]
    text = await score_summed(client, parts, SAME, data_digest=OTHER)
    words = await score_summed(client, parts, SAME, tokenizer_digest=OTHER)
    for candidate, baseline, status, code in (
        (text, done, 409, "not_comparable"),
        (words, done, 409, "not_comparable"),
        (waits, done, 404, "result_not_ready"),
        (done, waits, 404, "result_not_ready"),
        ("nope", done, 404, "job_not_found"),
        (done, "nope", 404, "job_not_found"),
    ):
        answer = await ask(client, candidate, {"kind": "job", "job": baseline})
        check_problem(answer, status, code)
    bits = await verdict_of(client, words, {"kind": "job", "job": done}, {"kind": "bits_per_byte"})
    assert bits.verdict == "pass"
    for rule, pointer in (
        ({"kind": "perplexity", "level": 0.5}, "level"),
        ({"kind": "perplexity", "max_regression_percent": 0}, "max_regression_percent"),
        ({"kind": "speed"}, "/rules/0"),
    ):
        problem = check_problem(
            await ask(client, done, {"kind": "promoted"}, rule), 422, "invalid_request"
        )
        assert pointer in problem["errors"][0]["pointer"], problem


async def as_run(parts: Parts, job_id: str, commit: str, compute_s: float) -> str:
    """Give a job that succeeded a label in its request, and a duration of 10 tokens."""
    async with parts.database.write() as session:
        job = await load_job(session, job_id, lock=True)
        job.request = {**job.request, "labels": {"commit": commit}}
        of_job = select(Rank).join(Attempt).where(Attempt.job_id == job_id)
        for rank in (await session.scalars(of_job)).all():
            rank.timing = {"num_scored_tokens": 10, "compute_s": compute_s}
    return job_id


async def test_speed_is_judged_by_repeated_runs(client: httpx.AsyncClient, parts: Parts) -> None:
    async def run(commit: str, compute_s: float) -> str:
        return await as_run(parts, await score_summed(client, parts, SAME), commit, compute_s)

    baseline, candidate = await run("a", 1.0), await run("b", 1.1)
    named, speed = {"kind": "job", "job": baseline}, {"kind": "tokens_per_second"}
    found = await verdict_of(client, candidate, named, speed)
    assert (found.verdict, "one run each" in found.sentence) == ("inconclusive", True)
    await run("a", math.exp(-0.02))
    await run("b", 1.1 * math.exp(0.02))
    await run("c", 9.0)
    found = await verdict_of(client, candidate, named, speed)
    numbers = found.model_dump()["outcomes"][0]["numbers"]
    assert (numbers["num_baseline_runs"], numbers["num_candidate_runs"]) == (2, 2)
    assert numbers["baseline"] == pytest.approx(10 * math.exp(0.01))
    assert found.verdict == "regression"
    repeat = await run("b", 1.0)
    answer = await ask(client, candidate, {"kind": "job", "job": repeat}, speed)
    assert "repeats of each other" in check_problem(answer, 409, "not_comparable")["detail"]
    other = await as_run(parts, await score_summed(client, parts, SAME, dtype="bfloat16"), "d", 1)
    answer = await ask(client, other, named, speed)
    assert "dtype" in check_problem(answer, 409, "not_comparable")["detail"]
    missing = await verdict_of(client, candidate, {"kind": "promoted"}, speed)
    assert missing.verdict == "missing_baseline"
