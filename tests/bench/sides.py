"""What is compared, each in a process of its own that loads once and is asked again and again."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluator.contract.launch import LaunchSpec
from evaluator.model.device import DTYPES, settle
from evaluator.model.forward import cut_model
from evaluator.model.loading import load_model, silence_libraries
from evaluator.prepare import prepare_text
from evaluator.reporting.timing import peak_resident_bytes
from evaluator.scoring.score import Scorer

Work = Callable[[], float]
"""Scores all of it; answers the nll in nats."""


@dataclass(frozen=True)
class Task:
    """A text and how to score it."""

    folder: Path
    dtype: str
    texts: Sequence[str]
    window: int
    scoring: dict[str, Any]
    scratch: Path

    @property
    def spec(self) -> LaunchSpec:
        """For the evaluator."""
        return LaunchSpec.model_validate(
            {
                "model": {"kind": "folder", "path": str(self.folder)},
                "data": {"kind": "inline", "documents": list(self.texts)},
                "scoring": self.scoring | {"window": self.window},
                "launch": {"device": "cpu", "dtype": self.dtype},
            }
        )

    def plain(self) -> Any:
        """The model as transformers has it."""
        dtype = DTYPES[self.dtype]
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=dtype).eval()


def evaluator(task: Task) -> Work:
    """Ours: tokenise, plan and score, as a rank does."""
    device = torch.device("cpu")
    loaded = load_model(task.folder, device=device, dtype=DTYPES[task.dtype])
    forward = cut_model(loaded.model, loaded.num_rows).forward
    numbers = count()

    def work() -> float:
        text = prepare_text(task.spec, loaded, task.scratch / f"ids-{os.getpid()}-{next(numbers)}")
        scorer = Scorer(
            forward=forward,
            documents=text.documents,
            prefix_token_id=text.convention.prefix.token_id,
            device=device,
            dtype=task.dtype,
        )
        return sum(float(n.sum()) for batch in text.plan.batches for n in scorer.score(batch))

    return work


def harness(task: Task, batch_size: int | str) -> Work:
    """lm-evaluation-harness; with `auto` up to 8 windows, as 64 would not fit into memory."""
    tokenizer = AutoTokenizer.from_pretrained(task.folder)
    model = import_module("lm_eval.models.huggingface").HFLM(
        task.plain(), tokenizer=tokenizer, max_length=task.window, batch_size=batch_size,
        max_batch_size=8, device="cpu", add_bos_token=False,
    )  # fmt: skip
    make = import_module("lm_eval.api.instance").Instance

    def rolling() -> float:
        requests = [
            make(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=index)
            for index, text in enumerate(task.texts)
        ]
        return -float(sum(model.loglikelihood_rolling(requests, disable_tqdm=True)))

    def strided() -> float:
        ids = [token for text in task.texts for token in model.tok_encode(text)]
        pairs = [
            (("", ""), ids[begin:middle], ids[middle:end])
            for begin, middle, end in strides(len(ids), task.window, task.scoring["stride"])
        ]
        found = model._loglikelihood_tokens(pairs, disable_tqdm=True)
        return -float(sum(nll for nll, _ in found))

    return strided if "stride" in task.scoring else rolling


def strides(num_tokens: int, window: int, stride: int) -> list[tuple[int, int, int]]:
    """Begin, first scored token and end of each window; the first token is never scored."""
    windows, middle = [], 1
    while middle < num_tokens:
        end = window if middle == 1 else middle + stride
        end = min(end, num_tokens)
        windows.append((max(0, end - window), middle, end))
        middle = end
    return windows


def loop(task: Task) -> Work:
    """A plain loop over windows, as the documentation of transformers shows it."""
    model, tokenizer = task.plain(), AutoTokenizer.from_pretrained(task.folder)
    stride = task.scoring.get("stride", task.window)

    @torch.inference_mode()
    def work() -> float:
        total = 0.0
        for text in task.texts:
            ids_1T = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
            for begin, middle, end in strides(ids_1T.shape[1], task.window, stride):
                window_1T = ids_1T[:, begin:end]
                labels_1T = window_1T.clone()
                labels_1T[:, : middle - begin] = -100
                loss = model(window_1T, labels=labels_1T).loss
                total += float(loss) * (end - middle)
        return total

    return work


_work: Work


def _load(make: Callable[..., Work], arguments: tuple[object, ...]) -> None:
    global _work
    settle(1)
    silence_libraries()
    _work = make(*arguments)


def _ask() -> tuple[float, float, int]:
    began = time.process_time()
    nll_nats = _work()
    return time.process_time() - began, nll_nats, peak_resident_bytes()


def _wait_for_load() -> None:
    """Nothing: a process answers once it has loaded."""


class Side:
    """One of the compared; `seconds` of processor time each time it was asked."""

    def __init__(self, make: Callable[..., Work], *arguments: object) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _load, (make, arguments))
        self.seconds: list[float] = []
        self.nll_nats = 0.0
        self.peak_bytes = 0
        self._pool.submit(_wait_for_load).result()

    def ask(self) -> None:
        """Have it score once."""
        seconds, self.nll_nats, self.peak_bytes = self._pool.submit(_ask).result()
        self.seconds.append(seconds)

    def close(self) -> None:
        """End its process."""
        self._pool.shutdown()


def compare(case: str, task: Task, peers: dict[str, tuple[Any, ...]], num: int) -> list[Any]:
    """Rows of ours beside each peer; all take turns.

    Args:
        case: For the rows.
        task: What is scored.
        peers: By name, what makes the work and its arguments after the task.
        num: Times that each is asked.
    """
    sides = {"assay": Side(evaluator, task)}
    sides |= {name: Side(make, task, *rest) for name, (make, *rest) in peers.items()}
    try:
        for turn in range(num):
            for side in list(sides.values())[:: 1 if turn % 2 else -1]:
                side.ask()
    finally:
        for side in sides.values():
            side.close()
    ours = sides.pop("assay")
    return [row(case, task.dtype, name, ours, side) for name, side in sides.items()]


def row(case: str, dtype: str, name: str, ours: Side, theirs: Side) -> dict[str, object]:
    """A line of the table."""
    pairs = zip(ours.seconds, theirs.seconds, strict=True)
    lower, middle, upper = statistics.quantiles(they_s / we_s for we_s, they_s in pairs)
    return {
        "case": case,
        "dtype": dtype,
        "peer": name,
        "ours_s": statistics.median(ours.seconds),
        "peer_s": statistics.median(theirs.seconds),
        "faster": middle,
        "quartile_1": lower,
        "quartile_3": upper,
        "ours_peak_MB": ours.peak_bytes // 10**6,
        "peer_peak_MB": theirs.peak_bytes // 10**6,
        "nll_differs": abs(ours.nll_nats / theirs.nll_nats - 1),
    }
