"""The device, number type, threads and seeds of a rank."""

import os
import platform
import random
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from evaluator.errors import DeviceUnavailable

SEED = 0
"""Nothing random decides a figure; a fixed seed keeps it so whatever a model does."""

_MODEL_LINES = ("model name", "CPU implementer", "CPU part")
"""Of /proc/cpuinfo."""

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def choose_device(asked: Literal["auto", "cpu", "cuda"], local_rank: int) -> torch.device:
    """The device of a rank; each rank of a node has a GPU of its own.

    Raises:
        DeviceUnavailable: There is no GPU, or not one for each rank.
    """
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        msg = "launch.device is cuda, but torch finds no usable GPU here; take cpu or auto"
        raise DeviceUnavailable(msg)
    num_devices = torch.cuda.device_count()
    if local_rank >= num_devices:
        msg = (
            f"local rank {local_rank} has no GPU: the node has {num_devices}; "
            f"lower launch.ranks_per_node"
        )
        raise DeviceUnavailable(msg)
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def settle(num_threads: int) -> None:
    """Fix threads and seeds, before anything is computed."""
    # Matrix products of Intel's library round alike with any number of threads; seen to cost
    # nothing. It reads this when it computes for the first time, and other libraries do not.
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    torch.set_num_threads(num_threads)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def processor() -> str:
    """Kind of the CPU; equal ones round alike."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    # x86 names the model, ARM numbers it.
    words = [line.partition(":")[2].strip() for line in lines if line.startswith(_MODEL_LINES)]
    return " ".join([platform.machine(), *dict.fromkeys(words)])


def peak_allocated_bytes() -> int:
    """Peak memory that torch allocated on this rank's GPU."""
    return torch.cuda.max_memory_allocated()


def free_memory(device: torch.device) -> None:
    """Give what torch holds in reserve back to the device; on a CPU it holds nothing."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def describe(device: torch.device) -> str:
    """Name of the device for a report."""
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return str(device)
