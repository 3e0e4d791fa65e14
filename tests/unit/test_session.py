import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluator.errors import Communication, ContractMismatch
from evaluator.log import JsonLines
from evaluator.ranks import RankInfo
from evaluator.session import choose_run_dir, read_spec
from tests.support.runs import make_spec

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
        ("{", "can't be read"),
        ("[]", "contract version 0"),
        (MINIMAL | {"contract_version": 2}, "contract version 2, but this evaluator has 1"),
        (MINIMAL | {"batch": 3}, "is wrong at batch"),
        (MINIMAL | {"scoring": {"convention": "lm-eval", "window": 1}}, "is wrong at scoring"),
        ({"model": MINIMAL["model"]}, "is wrong at data"),
    ],
    ids=["json", "list", "version", "unknown field", "value", "missing"],
)
def test_what_is_wrong_with_a_spec_is_told(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ContractMismatch, match=message):
        read_spec(written(tmp_path, content))


def test_a_missing_spec_is_told(tmp_path: Path) -> None:
    with pytest.raises(ContractMismatch, match="can't be read"):
        read_spec(tmp_path / "job.json")


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
