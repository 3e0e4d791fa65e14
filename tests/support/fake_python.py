#!/usr/bin/env python3
"""Stands in for the interpreter of a launch: a run without torch that behaves as it is told.

The server starts it as `fake_python.py -m torch.distributed.run ... spec.json`. The first inline
document of the spec says how to behave; the numbers it reports are made up but consistent.
"""

import gzip
import hashlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from evaluator.contract import CONTRACT_VERSION
from evaluator.contract.audit import AuditResult
from evaluator.contract.data import InlineData
from evaluator.contract.env import SPOOL_DIR, WINDOWS_FILE, spool_name
from evaluator.contract.launch import LaunchSpec
from evaluator.contract.parallelism import ParallelismUsed
from evaluator.contract.reports import (
    Hello,
    LedgerEntry,
    Perplexity,
    PlanFacts,
    PlanReady,
    Progress,
    RankTiming,
    Report,
    ReportBatch,
    Result,
    ScoringUsed,
    Traffic,
    WindowRecord,
)
from evaluator.figure.efficiency import efficiency

DIGEST = "sha256:" + "0" * 64
NLL = (0.1, 0.2, 0.3)
WINDOWS = "".join(
    WindowRecord(
        document=0, begin=10 * n, num_scored=10, nll_nats=nll, num_bytes=0 if n else 100
    ).model_dump_json()
    + "\n"
    for n, nll in enumerate(NLL)
).encode()
LIFETIME_S = 90.0


class FakeRank:
    """Rank 0 of a run of three batches, one window each."""

    def __init__(self, spec: LaunchSpec, *, online: bool) -> None:
        self.spec = spec
        self.online = online
        self.seq = 0

    def next_seq(self) -> int:
        """Number of the next report."""
        self.seq += 1
        return self.seq

    def send(self, report: Report) -> None:
        """Spool a report, then post it."""
        spool = Path(self.spec.run_dir or ".") / SPOOL_DIR
        spool.mkdir(exist_ok=True)
        with (spool / spool_name(0)).open("a") as file:
            file.write(report.model_dump_json() + "\n")
        if self.online:
            self.post(report)

    def post(self, report: Report) -> None:
        """Post one report; a server that is away is no harm."""
        batch = ReportBatch(contract_version=CONTRACT_VERSION, reports=(report,))
        token = Path(self.spec.token_path or "").read_text()
        request = urllib.request.Request(  # noqa: S310 - the test's own server
            self.spec.report_url or "",
            data=batch.model_dump_json().encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        )
        try:
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
        except OSError as error:
            print(f"report not taken: {error}", flush=True)  # noqa: T201 - goes to the job's log

    def hello(self) -> None:
        self.send(
            Hello(
                rank=0, seq=self.next_seq(), local_rank=0, node_rank=0, world_size=1, host="here",
                pid=os.getpid(), device="cpu", versions={},
            )
        )  # fmt: skip

    def plan(self) -> None:
        self.send(PlanReady(rank=0, seq=self.next_seq(), plan=plan_facts()))

    def score(self, *batches: int, shift: float = 0.0) -> None:
        entries = tuple(
            LedgerEntry(
                batch=batch,
                nll_nats=(NLL[batch] + shift,),
                nll_squares=(0.01,),
                num_scored=(10,),
                nll_by_context=(0.0,),
            )
            for batch in batches
        )
        timing = RankTiming(rank=0, local_rank=0, node_rank=0, compute_s=1.0, num_scored_tokens=10)
        self.send(
            Progress(rank=0, seq=self.next_seq(), stage="score", timing=timing, entries=entries)
        )

    def result(self, total: float = 0.6) -> None:
        path = Path(self.spec.run_dir or ".") / WINDOWS_FILE
        path.write_bytes(gzip.compress(WINDOWS))
        self.send(made_up_result(self.next_seq(), total))


def plan_facts() -> PlanFacts:
    return PlanFacts(
        digest=DIGEST, num_documents=1, num_windows=3, num_batches=3, num_input_tokens=33,
        num_scored_tokens=30,
    )  # fmt: skip


NO_AUDIT = AuditResult(
    num_windows=0, num_unchecked_batches=3, tolerance=0.0, largest_difference=0.0, quarantined=(),
    why_none="one rank",
)  # fmt: skip


NO_EFFICIENCY = efficiency((), "made up", None)


def made_up_result(seq: int, total: float) -> Result:
    perplexity = Perplexity(
        token_perplexity=1.02, token_perplexity_standard_error=None,
        token_perplexity_interval_95=None, mean_nll_nats=total / 30, mean_nll_standard_error=None,
        standard_error_clusters="blocks", num_clusters=3, windows_per_block=1,
        bits_per_byte=0.1, nll_sum_nats=total,
        num_scored_tokens=30, num_tokens=30, num_bytes=100, num_documents=1, num_windows=3,
        excluded_documents={}, excluded_tokens={}, naive_standard_error=None, byte_perplexity=1.01,
        word_perplexity=None, word_rule="made up", num_words=0, num_replaced=0,
    )  # fmt: skip
    scoring = ScoringUsed(
        convention="lm-eval", window=10, stride=10, batch_tokens=10, prefix="none",
        prefix_token_id=None, prefix_place="none", special_tokens="text", join=None,
        tail=None, definition="made up",
    )  # fmt: skip
    return Result(
        rank=0, seq=seq, perplexity=perplexity, nll_by_context=(), tokens_digest=None,
        scoring=scoring, plan=plan_facts(),
        model_digest=DIGEST, data_digest=DIGEST, tokenizer_digest=DIGEST,
        windows_digest=f"sha256:{hashlib.sha256(WINDOWS).hexdigest()}", device="cpu",
        dtype="float32", threads_per_rank=1, world_size=1, num_batches_resumed=0, wall_s=1.0,
        audit=NO_AUDIT, sync_error=0.0, efficiency=NO_EFFICIENCY, traffic=Traffic(), packed=None,
        versions={}, parallelism=ParallelismUsed(),
    )  # fmt: skip


def linger() -> None:
    """Stay until somebody ends us."""
    time.sleep(LIFETIME_S)


def deaf_child() -> None:
    """Start a child in a session of its own that ignores SIGTERM, as a stubborn rank would."""
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(90)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def run(rank: FakeRank, mode: str) -> None:
    """Behave."""
    if mode == "silent":
        linger()
    rank.hello()
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deaf_child()
    if mode in ("hello", "deaf"):
        linger()
    rank.plan()
    rank.score(0, 1)
    if mode == "half":
        linger()
    if mode == "die once" and rank.spec.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "no result":
        return
    if mode == "contradict":
        rank.score(1, shift=1e-9)
    rank.score(2)
    rank.result(0.7 if mode == "wrong total" else 0.6)
    if mode == "result, then linger":
        linger()
    if mode == "result, then exit 3":
        sys.exit(3)


def main() -> None:
    spec = LaunchSpec.model_validate_json(Path(sys.argv[-1]).read_bytes())
    assert isinstance(spec.data, InlineData)
    mode = spec.data.documents[0]
    run(FakeRank(spec, online="offline" not in spec.data.documents), mode)


if __name__ == "__main__":
    main()
