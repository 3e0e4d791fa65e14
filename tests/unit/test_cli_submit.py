"""What options and files turn into: checked against the server's own request model."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from app.cli import submit as module
from app.cli.client import Client
from app.cli.main import cli
from app.cli.options import parse_labels
from app.jobs.request import JobRequest


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Requests that would have been sent; the working directory is empty."""
    requests: list[dict[str, Any]] = []

    def keep(_: Client, request: dict[str, Any], *, target: Any, **__: Any) -> int:
        requests.append(request if target is None else request | {"target": target})
        return 0

    monkeypatch.setattr(module, "send", keep)
    monkeypatch.chdir(tmp_path)
    return requests


def run(*arguments: str, stdin: str | None = None) -> int:
    return CliRunner().invoke(cli, ["submit", *arguments], input=stdin).exit_code


def test_least(sent: list[dict[str, Any]]) -> None:
    assert run("--model", "SmolLM2", "--data", "wiki.txt") == 0
    assert sent == [
        {
            "model": {"kind": "folder", "path": "SmolLM2"},
            "data": {"kind": "text", "path": "wiki.txt"},
        }
    ]
    JobRequest.model_validate(sent[0])


def test_everything(sent: list[dict[str, Any]]) -> None:
    options = (
        "--hub org/model --revision abc --data a.parquet --field body --convention hf-strided "
        "--window 1024 --stride 256 --batch-tokens 4096 --ranks 2 --nodes 3 --device cuda "
        "--dtype bfloat16 --threads 4 --audit-share 0.05 --time 2h --attempts 5 "
        "--parallelism tp=2,cp=-1 --label a=b --label c/d=e=f --priority -7"
    )
    assert run(*options.split()) == 0
    request = JobRequest.model_validate(sent[0])
    assert json.loads(request.model_dump_json(exclude_unset=True)) == {
        "model": {"kind": "hub", "name": "org/model", "revision": "abc"},
        "data": {"kind": "parquet", "path": "a.parquet", "field": "body"},
        "scoring": {
            "convention": "hf-strided",
            "window": 1024,
            "stride": 256,
            "batch_tokens": 4096,
        },
        "launch": {
            "nodes": 3,
            "ranks_per_node": 2,
            "device": "cuda",
            "dtype": "bfloat16",
            "threads_per_rank": 4,
            "parallelism": {"dp_replicate": 1, "tp": 2, "cp": -1},
        },
        "audit": {"share": 0.05},
        "limits": {"time_seconds": 7200, "attempts": 5},
        "labels": {"a": "b", "c/d": "e=f"},
        "priority": -7,
    }


@pytest.mark.parametrize(
    ("options", "scoring"),
    [
        ("--stride 5", {"stride": 5, "convention": "hf-strided"}),
        ("--prefix bos", {"prefix": "bos", "convention": "lm-eval"}),
        ("--window 9", {"window": 9, "convention": "lm-eval"}),
        ("--prefix-place every", {"prefix_place": "every", "convention": "lm-eval"}),
        ("--special-tokens parse", {"special_tokens": "parse", "convention": "lm-eval"}),
        ("--convention gptq", {"convention": "gptq"}),
        ("--convention llama.cpp --prefix none", {"convention": "llama.cpp", "prefix": "none"}),
        ("--convention document", {"convention": "document"}),
    ],
)
def test_convention_follows(
    sent: list[dict[str, Any]], options: str, scoring: dict[str, Any]
) -> None:
    assert run("--model", "m.GGUF", "--text", "one", "--text", "two", *options.split()) == 0
    assert sent[0]["scoring"] == scoring
    assert sent[0]["model"]["kind"] == "gguf"
    assert sent[0]["data"] == {"kind": "inline", "documents": ["one", "two"]}
    JobRequest.model_validate(sent[0])


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ("--data a.csv --field body", {"kind": "csv", "path": "a.csv", "field": "body"}),
        ("--data texts/", {"kind": "folder", "path": "texts/"}),
        ("--data wikitext-2", {"kind": "known", "name": "wikitext-2"}),
    ],
    ids=["csv", "folder", "known"],
)
def test_data_tells_its_kind(
    sent: list[dict[str, Any]], options: str, data: dict[str, Any]
) -> None:
    assert run("--model", "m", *options.split()) == 0
    assert sent[0]["data"] == data
    JobRequest.model_validate(sent[0])


def test_options_change_a_file(sent: list[dict[str, Any]], tmp_path: Path) -> None:
    written = {
        "model": {"kind": "hub", "name": "old"},
        "data": {"kind": "text", "path": "a.txt"},
        "scoring": {"convention": "hf-strided", "window": 64},
        "labels": {"keep": "1", "change": "1"},
    }
    (tmp_path / "job.json").write_text(json.dumps(written))
    assert run("--file", "job.json", "--model", "new", "--stride", "8", "--label", "change=2") == 0
    assert sent == [
        {
            "model": {"kind": "folder", "path": "new"},
            "data": {"kind": "text", "path": "a.txt"},
            "scoring": {"convention": "hf-strided", "window": 64, "stride": 8},
            "labels": {"keep": "1", "change": "2"},
        }
    ]


def test_file_from_stdin_goes_out_as_it_is(sent: list[dict[str, Any]]) -> None:
    written = {"model": {"kind": "new"}, "data": {}, "scoring": None, "unknown": [1]}
    assert run("--file", "-", stdin=json.dumps(written)) == 0
    assert sent == [written]


@pytest.mark.parametrize(
    ("server", "absolute"), [("http://localhost:1", True), ("http://10.0.0.1:1", False)]
)
def test_path_that_is_here_is_absolute_for_a_server_that_is_here(
    sent: list[dict[str, Any]], tmp_path: Path, server: str, absolute: bool
) -> None:
    (tmp_path / "m").mkdir()
    assert run("--model", "m", "--text", "x", "--server", server) == 0
    assert sent[0]["model"]["path"] == (str(tmp_path / "m") if absolute else "m")


@pytest.mark.parametrize(
    "options",
    [
        "--data a.txt",
        "--model m",
        "--model m --data a.xml",
        "--model m --data a.txt --text x",
        "--model m --hub h --text x",
        "--model m --revision r --text x",
        "--model m --text x --field f",
        "--model m --data a.txt --field f",
        "--model m --text x --label novalue",
        "--model m --text x --time soon",
        "--model m --text x --window 1",
        "--model m --text x --parallelism 2",
        "--model m --text x --parallelism pp=2",
        "--model m --text x --parallelism tp=0",
        "--model m --text x --priority 101",
        "--file absent.json",
        "--file -",
        "--unknown",
    ],
)
def test_wrong_usage_ends_with_2(sent: list[dict[str, Any]], options: str) -> None:
    assert run(*options.split(), stdin="[]") == 2
    assert sent == []


def test_label_value_may_be_empty() -> None:
    assert parse_labels(["a="]) == {"a": ""}
    with pytest.raises(typer.BadParameter):
        parse_labels(["=b"])


def test_a_commit_is_named_with_its_forge(sent: list[dict[str, Any]]) -> None:
    least, sha = ("--model", "m", "--data", "d.txt"), "0A" * 20
    assert run(*least, "--commit", f"gitlab:a/b/c@{sha}", "--context", "assay/ppl") == 0
    assert run(*least, "--commit", f"github:a/b@{sha}") == 0
    assert [each["target"] for each in sent] == [
        {"forge": "gitlab", "repository": "a/b/c", "sha": sha.lower(), "context": "assay/ppl"},
        {"forge": "github", "repository": "a/b", "sha": sha.lower(), "context": "assay"},
    ]


@pytest.mark.parametrize(
    "options",
    [
        ("--context", "c"),
        ("--commit", f"a/b@{'0' * 40}"),
        ("--commit", "github:a/b"),
        ("--commit", "github:a/b@main"),
        ("--commit", f"github:a@{'0' * 40}"),
        ("--commit", f"bitbucket:a/b@{'0' * 40}"),
    ],
)
def test_what_names_no_commit_is_refused(
    sent: list[dict[str, Any]], options: tuple[str, ...]
) -> None:
    assert run("--model", "m", "--data", "d.txt", *options) == 2
    assert sent == []


def test_a_job_is_reported_as_soon_as_it_is_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"id": "job_1"})

    target = {"forge": "github"}
    with Client("http://assay.test", transport=httpx.MockTransport(answer)) as client:
        assert module.send(client, {"a": 1}, wait=False, as_json=True, target=target) == 0
    assert asked == [("POST", "/v1/jobs", {"a": 1}), ("PUT", "/v1/jobs/job_1/commit", target)]
    assert capsys.readouterr().out == '{"id":"job_1"}\n'
