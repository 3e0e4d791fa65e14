"""Runs of the evaluator: in this process, or real ones in processes of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from evaluator.contract.audit import Author
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import (
    Failure,
    FinishedEntry,
    Hello,
    LedgerEntry,
    PlanReady,
    Progress,
    Report,
    Result,
)
from evaluator.exchange.ranks import RankInfo
from evaluator.session import Session

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
REPORT: TypeAdapter[Report] = TypeAdapter(Report)


def make_spec(model: Path, documents: Sequence[str] | None = None, **fields: Any) -> LaunchSpec:
    """A spec for a model folder or GGUF file and inline documents, on the CPU."""
    kind = "gguf" if model.suffix == ".gguf" else "folder"
    spec: dict[str, Any] = {
        "model": {"kind": kind, "path": str(model)},
        "launch": {"device": "cpu"},
        **fields,
    }
    if documents is not None:
        spec["data"] = {"kind": "inline", "documents": list(documents)}
    return LaunchSpec.model_validate(spec)


def run_here(spec: LaunchSpec, run_dir: Path) -> Result:
    """Run alone in this process: the whole evaluator but its entry."""
    result = Session(spec, RankInfo(), run_dir, time.monotonic()).run()
    assert result is not None
    return result


def read_spool(run_dir: Path, rank: int = 0) -> list[Report]:
    """Whole reports of one rank, in order."""
    path = run_dir / "spool" / f"rank-{rank:05d}.jsonl"
    if not path.exists():
        return []
    whole = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return [REPORT.validate_json(line) for line in whole]


@dataclass
class Launched:
    """A run in processes of its own."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    output_path: Path
    num_ranks: int

    @property
    def output(self) -> str:
        """What all processes have written so far."""
        return self.output_path.read_text(errors="replace")

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """Exit code of the launcher; the output is shown where it does not come."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            msg = f"the run did not end within {within_s} s:\n{self.output[-4000:]}"
            raise AssertionError(msg) from None

    def reports(self) -> list[Report]:
        """Of all ranks."""
        return [r for rank in range(self.num_ranks) for r in read_spool(self.run_dir, rank)]

    def hello(self, rank: int) -> Hello | None:
        """The first word of a rank, once it is there."""
        first = read_spool(self.run_dir, rank)[:1]
        return first[0] if first and isinstance(first[0], Hello) else None

    def plan(self) -> PlanReady | None:
        """The plan, once it stands."""
        return next((r for r in self.reports() if isinstance(r, PlanReady)), None)

    def entries(self) -> list[LedgerEntry]:
        """Finished batches of all ranks."""
        return [e for r in self.reports() if isinstance(r, Progress) for e in r.entries]

    def result(self) -> Result:
        """The result; the output is shown where there is none."""
        results = [report for report in self.reports() if isinstance(report, Result)]
        assert len(results) == 1, self.output[-4000:]
        return results[0]

    def failures(self) -> list[Failure]:
        """Of all ranks."""
        return [report for report in self.reports() if isinstance(report, Failure)]


@contextmanager
def launched(spec: LaunchSpec, folder: Path, *, num_ranks: int) -> Iterator[Launched]:
    """A run under torchrun, or alone with 0 ranks. No process of it outlives the block."""
    folder.mkdir(parents=True, exist_ok=True)
    spec_path = folder / "job.json"
    spec_path.write_text(spec.model_dump_json())
    run_dir = folder / "run"
    entry = ["-m", "evaluator", str(spec_path), "--run-dir", str(run_dir)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command = [sys.executable, *(torchrun if num_ranks else []), *entry]
    output_path = folder / "output.txt"
    with output_path.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    run = Launched(process, run_dir, output_path, max(num_ranks, 1))
    try:
        yield run
    finally:
        process.kill()
        process.wait()
        # torchrun's ranks are in sessions of their own.
        for rank in range(run.num_ranks):
            hello = run.hello(rank)
            if hello is not None and is_alive(hello.pid):
                os.kill(hello.pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """True while a process runs; one that has ended and is not yet collected does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def write_finished(path: Path, *by_rank: Sequence[LedgerEntry]) -> Path:
    """A file of what ranks of the first attempt have finished, as the server writes it."""
    host = socket.gethostname()
    authors = [Author(attempt=1, rank=rank, node_rank=0, host=host) for rank in range(len(by_rank))]
    finished = [
        FinishedEntry(author=author, entry=entry)
        for author, entries in zip(authors, by_rank, strict=True)
        for entry in entries
    ]
    path.write_text("".join(f"{each.model_dump_json()}\n" for each in finished))
    return path


def write_jsonl(path: Path, records: Sequence[object]) -> Path:
    """A JSON lines file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
