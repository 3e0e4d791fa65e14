"""`assay compare` and `assay verify`, as people see them."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from app.api.comparisons import view_comparison
from app.cli.client import Client
from app.cli.main import cli
from app.cli.render_checks import print_comparison, print_verdict
from app.jobs.comparison import compare
from evaluator.contract.env import SPEC_FILE, WINDOWS_FILE
from tests.unit.test_comparison import THREE, A, result, shifted, side

VERDICT = {
    "ok": True,
    "tolerance": 1e-6,
    "largest_absolute": 2.5e-6,
    "largest_relative": 3.1e-8,
    "num_windows": 44,
    "num_windows_checked": 1,
    "num_tokens_checked": 512,
    "sample_perplexity": 14.6251234567,
    "sample_perplexity_reference": 14.6251234561,
    "windows": [
        {
            "document": 3,
            "begin": 1024,
            "num_scored": 512,
            "job_nats": 1373.5,
            "reference_nats": 1373.50004,
            "absolute": 4e-5,
            "relative": 3.1e-8,
        }
    ],
}
FAKE_PYTHON = """#!{python}
import sys
sys.stdout.write({out!r})
sys.stderr.write({err!r})
print(sys.argv[1:], file=open({log!r}, "w"))
sys.exit({code})
"""


def lines_of(print_it: Any, data: dict[str, Any]) -> list[str]:
    console = Console(file=io.StringIO(), width=200, highlight=False, markup=False)
    print_it(console, data)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def comparison(*nats: float) -> dict[str, Any]:
    other = side(shifted(THREE, *nats), result(model_digest=A))
    found = compare(side(THREE), other)
    shown: dict[str, Any] = json.loads(view_comparison(found, "job_1", "job_2").model_dump_json())
    return shown


def test_a_comparison_shows_difference_error_and_verdict() -> None:
    assert lines_of(print_comparison, comparison(1.0, 1.0, -1.0)) == [
        "baseline 1.00 nats per token, job_1",
        "candidate 1.20 nats per token, job_2",
        "difference +0.20 ± 0.48 nats per token",
        "95 % interval -5.90 to 6.30",
        "perplexity ratio 1.22 (0.00 to 544.02)",
        "paired by 3 windows; independent: 2 documents",
        "better, worse, same 1, 2, 0",
        "sign test p = 1, documents: 1 better, 1 worse",
        "model sha256:000000000000 -> sha256:aaaaaaaaaaaa",
        "",
        "The candidate's perplexity is 1.2214 times the baseline's, which 2 documents can't tell "
        "from chance (95 % interval).",
    ]


def test_two_jobs_alike_have_neither_error_nor_sign_test() -> None:
    lines = lines_of(print_comparison, comparison(0.0, 0.0, 0.0))
    assert "difference 0 nats per token" in lines
    assert not [line for line in lines if line.startswith("sign test")]
    assert lines[-1] == "Both jobs have the same nll in each of 2 documents."


def test_the_client_asks_for_both_jobs() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/comparisons"
        return httpx.Response(200, json=dict(request.url.params))

    with Client("http://assay.test", transport=httpx.MockTransport(answer)) as client:
        asked = client.comparison("job_1", "job_2").data
    assert asked == {"baseline": "job_1", "candidate": "job_2"}


def test_a_verdict_shows_each_window_and_the_largest_difference() -> None:
    lines = lines_of(print_verdict, VERDICT)
    assert lines[1:] == [
        "3 1,024 512 1373.500000000 1373.500040000 3.1e-08",
        "",
        "scored again 1 of 44 windows, 512 tokens",
        "perplexity, job 14.62512346",
        "perplexity, reference 14.62512346",
        "largest difference 2.5e-06 nats, relative 3.1e-08",
        "verdict agrees (limit 1e-06 relative)",
    ]
    assert lines_of(print_verdict, VERDICT | {"ok": False})[-1].startswith("verdict DIFFERS")


def verify(folder: Path, *, code: int, out: str = "", err: str = "") -> tuple[int, str]:
    """Exit code and output of `assay verify`, the evaluator played by a script."""
    for attempt in ("2", "10"):
        run_dir = folder / "state" / "runs" / "job_1" / attempt
        run_dir.mkdir(parents=True)
        (run_dir / WINDOWS_FILE).write_bytes(b"")
    python = folder / "python"
    log = folder / "argv"
    python.write_text(
        FAKE_PYTHON.format(python=sys.executable, out=out, err=err, log=str(log), code=code)
    )
    python.chmod(0o755)
    arguments = ["verify", "job_1", "--state-dir", str(folder / "state"), "--python", str(python)]
    done = CliRunner().invoke(cli, [*arguments, "--seed", "7", "--json"])
    spec = str(run_dir / SPEC_FILE)
    assert log.read_text().startswith(f"['-m', 'evaluator.verify', '{spec}', '--run-dir',")
    assert "'--seed', '7'" in log.read_text()
    return done.exit_code, done.output


@pytest.mark.parametrize("ok", [True, False])
def test_verify_hands_on_the_verdict_of_the_last_attempt(tmp_path: Path, ok: bool) -> None:
    out = json.dumps(VERDICT | {"ok": ok})
    assert verify(tmp_path, code=0 if ok else 1, out=out) == (0 if ok else 1, out + "\n")


@pytest.mark.parametrize(
    ("code", "err", "says"),
    [
        (3, "the text has changed\n", "Error: job_1: the text has changed"),
        (1, "Traceback\nModuleNotFoundError: evaluator\n", "ModuleNotFoundError: evaluator"),
        (-9, "", "it ended with"),
    ],
)
def test_verify_says_why_there_is_no_verdict(
    tmp_path: Path, code: int, err: str, says: str
) -> None:
    exit_code, output = verify(tmp_path, code=code, err=err)
    assert exit_code == 1
    assert says in output


@pytest.mark.parametrize("job", ["job_2", "../job_1"])
def test_verify_needs_a_run_directory(tmp_path: Path, job: str) -> None:
    done = CliRunner().invoke(cli, ["verify", job, "--state-dir", str(tmp_path)])
    assert done.exit_code == 2
