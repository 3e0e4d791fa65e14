"""The command line, in processes of its own."""

import json
import subprocess
import sys
from pathlib import Path

from evaluator.contract.reports import Result
from tests.support.report_server import ReportServer
from tests.support.runs import DEADLINE_S, ROOT, make_spec, read_spool, run_here
from tests.support.tiny import words


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "evaluator", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_help_needs_no_torch() -> None:
    code = (
        "import runpy, sys; sys.argv[1:] = ['--help']\n"
        "try: runpy.run_module('evaluator', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "job.json" in done.stdout


def test_alone_it_prints_the_result(tiny: Path, tmp_path: Path) -> None:
    spec = make_spec(tiny, [words(50)])
    path = tmp_path / "job.json"
    path.write_text(spec.model_dump_json(include={"model", "data", "launch"}))
    done = evaluate(str(path))
    assert done.returncode == 0, done.stderr
    result = Result.model_validate_json(done.stdout)
    assert result.perplexity == run_here(spec, tmp_path / "here").perplexity
    # The reports lie beside the spec, and the log is JSON lines or nothing.
    assert (tmp_path / "job.json.run" / "spool" / "rank-00000.jsonl").is_file()
    for line in done.stderr.splitlines():
        assert json.loads(line)["job_id"] == "local"


def test_alone_it_says_why_it_failed(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(make_spec(tiny, [""]).model_dump_json())
    done = evaluate(str(path), "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 1
    assert done.stdout == ""
    *log, last = done.stderr.splitlines()
    assert last.startswith("data_empty: no document of the data set has a token to score")
    assert json.loads(log[-1])["reason"] == "data_empty"


def test_a_wrong_spec_is_told(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("{}")
    done = evaluate(str(path))
    assert done.returncode == 1
    assert done.stderr.startswith("spec_invalid: the launch spec")


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    entry = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "evaluator"]
    return subprocess.run(
        [sys.executable, *entry, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_under_torchrun_rank_0_prints_the_result(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(make_spec(tiny, [words(50)]).model_dump_json())
    for _ in range(2):  # the second run starts the run directory anew
        done = torchrun(str(path))
        assert done.returncode == 0, done.stderr
        result = Result.model_validate_json(done.stdout)
        assert result.world_size == 2
        reports = read_spool(tmp_path / "job.json.run")
        assert [report for report in reports if isinstance(report, Result)] == [result]


def test_a_result_that_a_server_waits_for_is_not_printed(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    server = ReportServer()
    try:
        spec = make_spec(tiny, [words(50)], report_url=server.url)
        path.write_text(spec.model_dump_json())
        done = torchrun(str(path))
    finally:
        server.close()
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_under_torchrun_the_reason_is_the_last_line_of_the_rank(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(
        make_spec(tmp_path / "none", [words(5)]).model_dump_json(include={"model", "data"})
    )
    done = torchrun(str(path))
    assert done.returncode != 0
    assert done.stdout == ""
    sentence = f"model_not_found: there is no model folder {tmp_path / 'none'}"
    assert sentence in done.stderr.splitlines()
    # No traceback of a rank; torchrun shows those that it got from the ranks' error files.
    by_ranks, summary, by_torchrun = done.stderr.partition("evaluator FAILED")
    assert summary
    assert "there is no model folder" in by_torchrun.partition("Root Cause")[2]
    assert "evaluator/session.py" not in by_ranks
