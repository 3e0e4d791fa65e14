"""What commits are told and how forges are asked, by hand."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from pydantic import SecretStr

from app.notify.sender import Outcome
from app.statuses.badge import badge_of, draw
from app.statuses.forges import Api, is_taken, make_post
from app.statuses.target import CommitTarget, Forge
from app.statuses.told import (
    WORDS,
    CommitState,
    Inconclusive,
    is_news,
    shorten,
    tell_job,
    tell_verdict,
)
from evaluator.contract.states import FailureReason, JobState

SHA = "0123456789abcdef0123456789abcdef01234567"
S = CommitState
PAGE = (Path(__file__).parents[2] / "docs" / "statuses.md").read_text()


def result_of(value: float | None, error: float | None) -> dict[str, Any]:
    """A result as far as a status goes."""
    return {"perplexity": {"token_perplexity": value, "token_perplexity_standard_error": error}}


def told(state: JobState, **changes: Any) -> tuple[CommitState, str]:
    """What a job in a state is told as."""
    arguments: dict[str, Any] = {"reason": None, "result": None, "awaits_verdict": False}
    found = tell_job("job_1", state, **(arguments | changes))
    return found.state, found.description


def test_every_state_is_told_as_the_manual_says() -> None:
    rows = re.findall(r"^\| ([a-z_, ]+) \| `(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    manual = {
        JobState(name): (github, gitlab)
        for names, github, gitlab in rows
        for name in names.split(", ")
    }
    ours = {}
    for state in JobState:
        found, _ = told(state, result=result_of(15.2345, 0.41))
        ours[state] = (WORDS[Forge.GITHUB][found], WORDS[Forge.GITLAB][found])
    assert ours == manual
    assert len(rows) == 6


def test_a_success_has_its_figure_and_a_failure_its_reason() -> None:
    assert told(JobState.SUCCEEDED, result=result_of(15.2345, 0.41)) == (
        S.SUCCESS,
        "perplexity 15.23 ± 0.41",
    )
    assert told(JobState.SUCCEEDED, result=result_of(None, None), awaits_verdict=True) == (
        S.RUNNING,
        "perplexity too large for a float, waits for its gate",
    )
    assert told(JobState.TIMED_OUT, reason=FailureReason.RANK_DIED) == (
        S.FAILURE,
        "timed out: rank_died",
    )


@pytest.mark.parametrize(("policy", "expected"), [("failure", S.FAILURE), ("success", S.SUCCESS)])
def test_a_verdict_that_settles_nothing_is_told_by_the_setting(
    policy: Inconclusive, expected: CommitState
) -> None:
    assert tell_verdict("job_1", "pass", "x", policy).state is S.SUCCESS
    assert tell_verdict("job_1", "regression", "x", policy).state is S.FAILURE
    for verdict in ("inconclusive", "missing_baseline"):
        found = tell_verdict("job_1", verdict, "there is none", policy)
        assert (found.state, found.description.endswith(": there is none")) == (expected, True)


def test_a_description_is_one_line_of_140_characters() -> None:
    assert shorten(" a\n b ") == "a b"
    assert shorten("x" * 140) == "x" * 140
    assert shorten("x" * 141) == "x" * 139 + "\u2026"


def test_gitlab_is_sent_no_state_that_it_has_or_is_past() -> None:
    refused = {(sent, state) for sent in S for state in S if not is_news(Forge.GITLAB, sent, state)}
    assert refused == {(state, state) for state in S} | {(S.RUNNING, S.PENDING)}
    assert all(is_news(Forge.GITHUB, sent, state) for sent in S for state in S)
    assert all(is_news(Forge.GITLAB, None, state) for state in S)


def post_of(target: CommitTarget) -> tuple[str, dict[str, str], Any]:
    """What is sent for a target."""
    post = make_post(
        target.forge,
        Api("https://forge.example/api/v4", SecretStr("secret")),
        repository=target.repository,
        sha=target.sha,
        context=target.context,
        state=S.CANCELLED,
        description="cancelled",
        target_url="https://assay.example/v1/jobs/job_1",
    )
    return post.url, dict(post.headers), json.loads(post.body)


def test_requests_are_those_of_the_manuals() -> None:
    github = CommitTarget(forge=Forge.GITHUB, repository="acme/.github", sha=SHA, context="c")
    url, headers, body = post_of(github)
    assert url == f"https://forge.example/api/v4/repos/acme/.github/statuses/{SHA}"
    assert headers["Authorization"] == "Bearer secret"
    common = {"description": "cancelled", "target_url": "https://assay.example/v1/jobs/job_1"}
    assert body == {**common, "state": "error", "context": "c"}
    gitlab = CommitTarget(forge=Forge.GITLAB, repository="a/b/c", sha=SHA)
    url, headers, body = post_of(gitlab)
    assert url == f"https://forge.example/api/v4/projects/a%2Fb%2Fc/statuses/{SHA}"
    assert headers["PRIVATE-TOKEN"] == "secret"
    assert body == {**common, "state": "canceled", "name": "assay"}


@pytest.mark.parametrize(
    ("state", "status", "message", "taken"),
    [
        (S.PENDING, 400, "Cannot transition status via :enqueue from :pending (Reason)", True),
        (S.PENDING, 400, "Cannot transition status via :enqueue from :running (Reason)", True),
        (S.RUNNING, 400, "Cannot transition status via :run from :running (Reason)", True),
        (S.FAILURE, 400, "Cannot transition status via :drop from :failed (Reason)", True),
        (S.FAILURE, 400, "Cannot transition status via :drop from :success (Reason)", False),
        (S.RUNNING, 400, "Cannot transition status via :run from :pending (Reason)", False),
        (S.RUNNING, 400, "name is too long", False),
        (S.RUNNING, 500, "Cannot transition status via :run from :running (Reason)", False),
    ],
)
def test_a_repeated_state_is_taken_by_gitlab_alone(
    state: CommitState, status: int, message: str, taken: bool
) -> None:
    body = json.dumps({"message": message})
    outcome = Outcome(latency_s=0.1, error=f"answered {status}", status_code=status, response=body)
    assert is_taken(Forge.GITLAB, state, outcome) is taken
    assert is_taken(Forge.GITHUB, state, outcome) is False


def test_which_targets_are_the_same() -> None:
    def key(**changes: str) -> str:
        fields = {"forge": "github", "repository": "acme/m", "sha": SHA, "context": "c"}
        return CommitTarget.model_validate(fields | changes).key

    assert key() == key(repository="Acme/M", sha=SHA.upper(), context="C")
    different = [
        key(),
        key(repository="acme/n"),
        key(sha="f" * 64),
        key(context="d"),
        key(forge="gitlab"),
        key(forge="gitlab", context="C"),
    ]
    assert len(set(different)) == len(different)


def test_a_badge_says_state_or_figure_to_eyes_and_to_readers() -> None:
    for state, result, value in (
        (JobState.QUEUED, None, "queued"),
        (JobState.TIMED_OUT, None, "timed out"),
        (JobState.FINISHING, result_of(15.2345, 0.41), "finishing"),
        (JobState.SUCCEEDED, result_of(15.2345, 0.41), "15.23 ± 0.41"),
    ):
        root = ET.fromstring(badge_of(state, result).svg)  # noqa: S314 - made here
        title, *_, texts = list(root)
        assert root.get("aria-label") == title.text == f"perplexity: {value}"
        assert [text.text for text in texts] == ["perplexity", value]


def test_a_badge_escapes_what_it_says() -> None:
    label, value = "a<b>&\"'", "</text><script>alert(1)</script>"
    root = ET.fromstring(draw(label, value, "#555").svg)  # noqa: S314 - made here
    assert [text.text for text in list(root)[-1]] == [label, value]
    assert root.get("aria-label") == f"{label}: {value}"
    assert {each.tag.rpartition("}")[2] for each in root.iter()} == {
        *("svg", "title", "rect", "path", "g", "text")
    }
