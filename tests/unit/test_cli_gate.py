"""`assay gate` and `assay promote`: what is asked, exit codes, summaries."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from app.cli import gate as module
from app.cli import submit as submitting
from app.cli.client import Client
from app.cli.gate import GateAsked, print_gate
from app.cli.gate_summary import to_junit, to_markdown
from app.cli.main import cli
from app.cli.submit import send

Json = dict[str, Any]

CHANGE: Json = {"kind": "perplexity", "max_regression_percent": 0.5, "level": 0.05}
LIMIT: Json = {"kind": "limit", "figure": "token_perplexity", "at_most": 20.0}
SPEED: Json = {"kind": "tokens_per_second", "max_regression_percent": 5.0, "level": 0.05}
SPEEDS: Json = {
    "baseline": 20.0,
    "candidate": 19.0,
    "change_percent": -5.0,
    "lower_percent": -12.0,
    "upper_percent": 3.0,
    "num_baseline_runs": 2,
    "num_candidate_runs": 2,
    "num_more_runs": 8,
}
NUMBERS: Json = {
    "baseline": 20.0855,
    "candidate": 20.1459,
    "change_percent": 0.3005,
    "lower_percent": -0.2056,
    "upper_percent": 0.809,
    "clusters": "documents",
    "num_clusters": 3,
    "num_tokens": 300,
    "num_more_tokens": 934,
}


def answer(verdict: str = "inconclusive", **changes: Any) -> Json:
    """What the server says."""
    outcomes = [
        {"rule": CHANGE, "verdict": verdict, "numbers": NUMBERS, "sentence": "It is | <unclear>."},
        {"rule": LIMIT, "verdict": "regression", "value": 20.1459, "sentence": "Above."},
        {"rule": CHANGE, "verdict": "missing_baseline", "numbers": None, "sentence": "None."},
        {"rule": LIMIT, "verdict": "pass", "value": 19.0, "sentence": "Within."},
        {"rule": SPEED, "verdict": "inconclusive", "numbers": SPEEDS, "sentence": "Noisy."},
    ]
    return {
        "verdict": verdict,
        "sentence": "It is | <unclear>.",
        "candidate": "job_2",
        "baseline": "job_1",
        "outcomes": outcomes,
        "num_unpaired_documents": 0,
        "differs": [{"name": "dtype", "baseline": "float32", "candidate": "bfloat16"}],
        **changes,
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Json]:
    """What would have been asked; the working directory is empty."""
    found: list[Json] = []

    def keep(_: Client, candidate: str, asked: GateAsked, **__: bool) -> int:
        found.append({"candidate": candidate, **asked.policy})
        return 0

    monkeypatch.setattr(module, "print_gate", keep)
    monkeypatch.chdir(tmp_path)
    return found


def run(*arguments: str, stdin: str | None = None) -> int:
    return CliRunner().invoke(cli, ["gate", *arguments], input=stdin).exit_code


def test_least_is_the_job_promoted_as_default(asked: list[Json]) -> None:
    assert run("job_2") == 0
    assert asked == [
        {
            "candidate": "job_2",
            "baseline": {"kind": "promoted", "name": "default"},
            "rules": [{"kind": "perplexity"}],
        }
    ]


def test_everything(asked: list[Json]) -> None:
    options = "--baseline branch=main --baseline family=a=b --max-regression 1% --level 0.01 "
    options += "--measure bits-per-byte --limit token_perplexity=20 --limit bits_per_byte=1.5 "
    options += "--max-slowdown 5%"
    assert run("job_2", *options.split()) == 0
    assert asked[0]["baseline"] == {"kind": "newest", "labels": {"branch": "main", "family": "a=b"}}
    assert asked[0]["rules"] == [
        {"kind": "bits_per_byte", "max_regression_percent": 1.0, "level": 0.01},
        LIMIT,
        {"kind": "limit", "figure": "bits_per_byte", "at_most": 1.5},
        {"kind": "tokens_per_second", "max_regression_percent": 5.0, "level": 0.01},
    ]


def test_a_baseline_is_a_job_or_a_name(asked: list[Json]) -> None:
    assert (run("job_2", "--baseline", "job_1"), run("job_2", "--baseline", "v1.2")) == (0, 0)
    assert [each["baseline"] for each in asked] == [
        {"kind": "job", "job": "job_1"},
        {"kind": "promoted", "name": "v1.2"},
    ]


def test_a_file_goes_out_as_it_is(asked: list[Json]) -> None:
    policy = {"baseline": {"kind": "promoted"}, "rules": [LIMIT]}
    assert run("job_2", "--file", "-", stdin=json.dumps(policy)) == 0
    assert asked == [{"candidate": "job_2", **policy}]


@pytest.mark.parametrize(
    "options",
    [
        "--max-regression half",
        "--max-regression 0",
        "--level 0.5",
        "--max-slowdown 5x",
        "--max-slowdown 99",
        "--measure speed",
        "--limit token_perplexity",
        "--limit token_perplexity=nan",
        "--limit speed=3",
        "--baseline main --baseline other",
        "--baseline two,words",
        "--file missing.json",
        "--file - --level 0.1",
        "--summary nowhere/gate.xml",
    ],
)
def test_wrong_usage_ends_with_2(asked: list[Json], options: str) -> None:
    assert run("job_2", *options.split(), stdin="{}") == 2
    assert asked == []


def test_wrong_rules_are_refused_before_a_job_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(submitting, "send", lambda *_, **__: pytest.fail("it was sent"))
    job = ["submit", "--model", "m", "--text", "x"]
    for name, policy, wait in (
        ("kind", {"rules": [{"kind": "speed"}]}, ["--wait"]),
        ("candidate", {"candidate": "job_1"}, ["--wait"]),
        ("--wait", {}, []),
    ):
        file = tmp_path / "gate.json"
        file.write_text(json.dumps(policy))
        done = CliRunner().invoke(cli, [*job, *wait, "--gate", str(file)])
        assert (done.exit_code, name in done.output) == (2, True), done.output
    assert CliRunner().invoke(cli, [*job, "--summary", "a.md"]).exit_code == 2


def client_of(*answers: Json) -> tuple[Client, list[httpx.Request]]:
    requests: list[httpx.Request] = []
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return httpx.Response(200, json=left.pop(0))

    return Client("http://assay.test", transport=httpx.MockTransport(handle)), requests


@pytest.mark.parametrize(
    ("verdict", "code"),
    [("pass", 0), ("regression", 1), ("inconclusive", 3), ("missing_baseline", 3), ("new", 3)],
)
def test_exit_codes(verdict: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    client, requests = client_of(answer(verdict))
    assert print_gate(client, "job_2", GateAsked({"rules": [CHANGE]}, []), as_json=False) == code
    assert json.loads(requests[0].content) == {"candidate": "job_2", "rules": [CHANGE]}
    output = capsys.readouterr().out
    assert output.splitlines()[0].split(maxsplit=1) == ["verdict", verdict.replace("_", " ")]
    assert "It is | <unclear>." in output
    assert "float32 -> bfloat16" in output


def test_a_job_that_fails_is_no_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"id": "job_2", "links": {"self": "/v1/jobs/job_2"}}
    ends: dict[int, int] = {}
    for code in (0, 1, 130):
        monkeypatch.setattr(submitting, "watch_to_end", lambda *_, code=code, **__: code)
        client, _ = client_of(job, answer("regression"))
        then = GateAsked({}, [])
        ends[code] = send(client, {}, wait=True, as_json=True, then=then)
    assert ends == {0: 1, 1: 4, 130: 130}


def test_promote(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    client, requests = client_of({"name": "main", "job": "job_1"})
    monkeypatch.setattr(module, "Client", lambda _: client)
    module.promote("job_1", name="main", server="", as_json=False)
    assert (requests[0].method, requests[0].url.path) == ("PUT", "/v1/baselines/main")
    assert json.loads(requests[0].content) == {"job": "job_1"}
    assert capsys.readouterr().out == "job_1 is the baseline 'main'\n"


def test_summaries_are_written_and_old_ones_emptied(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("gate.xml", "step")]
    (tmp_path / "gate.xml").write_text("of an earlier gate")
    asked = GateAsked.make({}, names, option=None)
    assert (tmp_path / "gate.xml").read_text() == ""
    found = answer()
    client, _ = client_of(found)
    print_gate(client, "job_2", asked, as_json=True)
    assert (tmp_path / "gate.xml").read_text() == to_junit(found)
    assert (tmp_path / "step").read_text() == to_markdown(found)


def test_markdown_has_a_row_for_each_rule() -> None:
    lines = to_markdown(answer()).splitlines()
    assert lines[0] == "### Gate: inconclusive"
    assert lines[2] == r"It is \| &lt;unclear>."
    assert lines[6:11] == [
        "| perplexity less than 0.5 % worse | inconclusive | 20.0855 | 20.1459 | +0.3 % | -0.206 % "
        "| +0.809 % | 934 tokens |",
        "| token perplexity at most 20 | regression | - | 20.1459 | - | - | - | - |",
        "| perplexity less than 0.5 % worse | missing baseline | - | - | - | - | - | - |",
        "| token perplexity at most 20 | pass | - | 19 | - | - | - | - |",
        "| tokens per second less than 5 % worse | inconclusive | 20 | 19 | -5 % | -12 % | +3 % | "
        "8 runs |",
    ]
    assert lines[-1] == "Candidate `job_2`, baseline `job_1`."


def test_junit_counts_regressions_as_failures_and_the_unclear_as_errors() -> None:
    root = ET.fromstring(to_junit(answer(baseline=None)))  # noqa: S314 - our own text
    suite = root.find("testsuite")
    assert suite is not None
    for element in (root, suite):
        counts = {name: element.get(name) for name in ("tests", "failures", "errors")}
        assert counts == {"tests": "5", "failures": "1", "errors": "3"}
    kinds = [[child.tag for child in case] for case in suite.iter("testcase")]
    assert kinds == [["error"], ["failure"], ["error"], ["system-out"], ["error"]]
    error = suite.find(".//error")
    assert error is not None
    assert error.attrib == {"type": "inconclusive", "message": "It is | <unclear>."}
