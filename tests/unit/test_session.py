import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator.contract.data import TextData
from evaluator.contract.launch import FolderModel, LaunchSpec
from evaluator.contract.reports import Hello
from evaluator.errors import Communication, ContractMismatch, SpecInvalid
from evaluator.exchange.ranks import RankInfo
from evaluator.log import JsonLines
from evaluator.reporting.spool import Spool
from evaluator.session import choose_run_dir, open_reporter, read_spec
from tests.support.runs import make_spec, read_spool

MINIMAL = {"model": {"kind": "folder", "path": "m"}, "data": {"kind": "text", "path": "a.txt"}}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "job.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_model_and_data_suffice(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, MINIMAL))
    assert spec.scoring.convention == "lm-eval"
    assert spec.launch.num_ranks == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON: .* line 1 column 2"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no JSON object but list"),
        (MINIMAL | {"contract_version": "1"}, "is wrong at contract_version"),
        (MINIMAL | {"batch": 3}, "is wrong at batch"),
        (MINIMAL | {"scoring": {"convention": "lm-eval", "window": 1}}, "is wrong at scoring"),
        (MINIMAL | {"model": {"kind": "folder"}}, r"is wrong at model\.path: Field required"),
        (
            MINIMAL | {"scoring": {"window": 64}},
            "is wrong at scoring: it lacks 'convention', which says what kind it is",
        ),
        (
            MINIMAL | {"model": {"kind": "onnx"}},
            "is wrong at model: kind is 'onnx', expected one of 'folder', 'gguf', 'hub'",
        ),
        ({"model": MINIMAL["model"]}, "is wrong at data"),
    ],
    ids=[
        "json",
        "deep",
        "list",
        "text",
        "unknown field",
        "value",
        "missing in a union",
        "no kind",
        "other kind",
        "missing",
    ],
)
def test_what_is_wrong_with_a_spec_is_told(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(SpecInvalid, match=message):
        read_spec(written(tmp_path, content))


def test_another_version_is_told(tmp_path: Path) -> None:
    with pytest.raises(ContractMismatch, match="contract version 2, but this evaluator has 1"):
        read_spec(written(tmp_path, {"contract_version": 2, "anything": True}))


def test_a_missing_spec_is_told_with_the_path_that_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecInvalid, match=f"{tmp_path}/job.json can't be read: No such file"):
        read_spec(Path("job.json"))


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = read_spec(written(tmp_path, MINIMAL))
    assert isinstance(spec.model, FolderModel)
    assert isinstance(spec.data, TextData)
    assert (spec.model.path, spec.data.path) == (str(tmp_path / "m"), str(tmp_path / "a.txt"))
    inline = MINIMAL | {"data": {"kind": "inline", "documents": ["a"]}}
    assert read_spec(written(tmp_path, inline)).data.kind == "inline"


def _spooled(spec: LaunchSpec, rank: RankInfo, run_dir: Path) -> int:
    reporter = open_reporter(spec, rank, run_dir)
    number = reporter.next_seq
    hello = Hello(
        rank=rank.rank,
        seq=number,
        local_rank=0,
        node_rank=0,
        world_size=1,
        host="h",
        pid=1,
        device="cpu",
        versions={},
    )
    reporter.send(hello)
    reporter.close()
    return number


def test_a_run_without_a_server_starts_its_spools_anew(tmp_path: Path) -> None:
    spec = make_spec(Path("m"), ["a"])
    ranks = [RankInfo(rank=rank, world_size=2, local_world_size=2) for rank in range(2)]
    assert [_spooled(spec, rank, tmp_path) for rank in ranks] == [1, 1]
    # A restart by torchrun is the same run.
    again = RankInfo(rank=1, world_size=2, local_world_size=2, restart=1)
    assert _spooled(spec, again, tmp_path) == 2
    assert _spooled(spec, RankInfo(), tmp_path) == 1
    assert [len(read_spool(tmp_path, rank)) for rank in range(2)] == [1, 0]


def test_a_spool_that_a_server_reads_is_continued(tmp_path: Path) -> None:
    spec = make_spec(Path("m"), ["a"], report_url="http://127.0.0.1:9/")
    run_dir = tmp_path / "run"
    with Spool(run_dir / "spool" / "rank-00000.jsonl") as spool:
        spool.append(b'{"seq":7}', sync=False)
    reporter = open_reporter(spec, RankInfo(), run_dir)
    assert reporter.next_seq == 8
    reporter.close(deadline_s=0)


def test_the_run_dir_is_the_asked_one_else_the_specs_else_beside_it() -> None:
    spec = make_spec(Path("m"), ["a"])
    placed = make_spec(Path("m"), ["a"], run_dir="/runs/7")
    assert choose_run_dir(Path("d/job.json"), spec, None) == Path("d/job.json.run")
    assert choose_run_dir(Path("d/job.json"), placed, None) == Path("/runs/7")
    assert choose_run_dir(Path("d/job.json"), placed, Path("x")) == Path("x")


TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "2",
    "WORLD_SIZE": "6",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "3",
}


def test_rank_local_rank_and_node_rank_are_three_things() -> None:
    rank = RankInfo.from_env(TORCHRUN)
    assert rank == RankInfo(
        rank=5, local_rank=1, node_rank=2, world_size=6, local_world_size=2, restart=3
    )
    assert not rank.leads_node
    # Launchers that do not number nodes place ranks one node after the other.
    del TORCHRUN["GROUP_RANK"]
    assert RankInfo.from_env(TORCHRUN) == rank


def test_a_process_without_rank_is_alone() -> None:
    assert RankInfo.from_env({"WORLD_SIZE": "4"}) == RankInfo()


@pytest.mark.parametrize("broken", [{"RANK": "0"}, TORCHRUN | {"WORLD_SIZE": "two"}])
def test_a_broken_launch_environment_is_told(broken: dict[str, str]) -> None:
    with pytest.raises(Communication, match="use torchrun"):
        RankInfo.from_env(broken)


def test_log_lines_are_json_with_context_and_extra_fields() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        error = sys.exc_info()
    record = logging.makeLogRecord(
        {"name": "evaluator.x", "levelname": "ERROR", "msg": "it %s", "args": ("broke",)}
        | {"exc_info": error, "path": Path("a/b"), "batch": 7, "created": 0.0}
    )
    line = json.loads(JsonLines({"job_id": "j", "rank": 3, "node_rank": 1}).format(record))
    assert line.pop("traceback").endswith("ValueError: why")
    assert line == {
        "time": "1970-01-01T00:00:00.000+00:00",
        "level": "error",
        "logger": "evaluator.x",
        "event": "it broke",
        "job_id": "j",
        "rank": 3,
        "node_rank": 1,
        "path": "a/b",
        "batch": 7,
    }
