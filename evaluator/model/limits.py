"""What a rank's part of the machine can do, measured in a few hundredths of a second.

After scoring, when nobody waits for a first number, by all ranks of a node at once: so each finds
what it gets beside the others. Nothing is kept: a limit of another day is no limit of this run.
"""

import time
from collections.abc import Callable

import torch

from evaluator.contract.efficiency import Limits

BUDGET_S = 0.05
"""For each of the two, after which no further try begins."""
FIRST_SIZE = 256
READ_BYTES = 1 << 28
LAST_SIZE = {"cpu": 1024, "cuda": 8192}
"""Of a square matrix. On a CPU larger ones are no faster, and would show in the peak memory."""
NUM_TRIES = 3
"""Of each size; the best counts, since others can only slow a product down."""


@torch.inference_mode()
def measure_limits(weight_VD: torch.Tensor) -> Limits:
    """The limits beside this weight: of its device and dtype.

    Args:
        weight_VD: The largest weights of the model, which are read.
    """
    return Limits(
        operations_per_second=_operations_per_second(weight_VD.device, weight_VD.dtype),
        bytes_per_second=_bytes_per_second(weight_VD),
    )


def _operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    size, best, end = FIRST_SIZE, 0.0, time.perf_counter() + BUDGET_S
    while size <= LAST_SIZE[device.type] and (not best or time.perf_counter() < end):
        left = torch.randn(size, size, device=device, dtype=dtype)
        out = torch.empty_like(left)
        seconds = _least_seconds(lambda: torch.mm(left, left, out=out), device)  # noqa: B023
        best = max(best, 2 * size**3 / seconds)
        size *= 2
    return best


def _bytes_per_second(weight_VD: torch.Tensor) -> float:
    # Whole numbers: their sum does not wait for the one before, as that of floats may.
    bytes_N = weight_VD.detach().reshape(-1).view(torch.uint8)[:READ_BYTES]
    bytes_N = bytes_N[-bytes_N.storage_offset() % 8 :]
    words_N = bytes_N[: len(bytes_N) // 8 * 8].view(torch.int64)
    return words_N.nbytes / _least_seconds(words_N.sum, weight_VD.device)


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    least, begin = float("inf"), time.perf_counter()
    for _ in range(NUM_TRIES):
        before = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        after = time.perf_counter()
        least = min(least, after - before)
        if after - begin > BUDGET_S:
            break
    return max(least, 1e-9)
