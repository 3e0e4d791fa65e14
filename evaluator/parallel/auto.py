"""Chooses a parallelism from model size, memory and ranks, and says why.

The smallest scoring group that holds the weights is the fastest: windows are independent, so
whatever ranks do not need for memory, they do best with windows of their own.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from evaluator.contract.launch import LaunchSpec
from evaluator.contract.parallelism import Parallelism, ParallelismUsed, resolve
from evaluator.errors import ParallelismInvalid
from evaluator.exchange.process_group import Peers
from evaluator.exchange.ranks import RankInfo
from evaluator.model.device import DTYPES
from evaluator.model.loading import load_config
from evaluator.parallel.loading import build_unread
from evaluator.parallel.parts import open_store
from evaluator.parallel.tensor import possible_ways

WEIGHTS_SHARE = 0.8
"""Of a rank's memory that weights may take; the rest is for activations and the libraries."""
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the choice depends on."""

    weights_bytes: int
    """In the number type asked for."""
    memory_bytes: int
    """Of one rank."""
    num_ranks: int
    ranks_per_node: int
    tp_ways: frozenset[int]
    """Ways to split the model's heads and widths, 1 among them."""


def agree_on_parallelism(
    peers: Peers, rank: RankInfo, spec: LaunchSpec, folder: Path, device: torch.device
) -> ParallelismUsed:
    """The parallelism of this run, the same on all ranks; rank 0 decides what is left open.

    Raises:
        ParallelismInvalid: Its product is not the number of ranks.
        EvaluatorError: As `load_config` and `open_store` say, where it is left open.
    """
    asked = spec.launch.parallelism
    if isinstance(asked, Parallelism):
        return _resolve(asked, rank)
    if rank.rank > 0:
        return ParallelismUsed.model_validate_json(peers.read("parallelism", owner=0))
    if spec.finished_group is not None:
        # Another shape would change the last bits of what is scored already.
        shape = Parallelism(**spec.finished_group.model_dump())
        used = _resolve(shape, rank).model_copy(update={"reason": "as in the attempts before"})
    else:
        used = choose(_look(rank, spec, folder, device))
    peers.publish("parallelism", used.model_dump_json())
    return used


def _resolve(asked: Parallelism, rank: RankInfo) -> ParallelismUsed:
    try:
        return resolve(asked, rank.world_size)
    except ValueError as error:
        msg = f"launch.parallelism does not fit: {error}"
        raise ParallelismInvalid(msg) from error


def _look(rank: RankInfo, spec: LaunchSpec, folder: Path, device: torch.device) -> Facts:
    dtype = DTYPES[spec.launch.dtype]
    return Facts(
        weights_bytes=open_store(folder).num_elements() * dtype.itemsize,
        memory_bytes=rank_memory_bytes(device, rank),
        num_ranks=rank.world_size,
        ranks_per_node=rank.local_world_size,
        tp_ways=possible_ways(build_unread(load_config(folder), dtype), rank.local_world_size),
    )


def choose(facts: Facts) -> ParallelismUsed:
    """The smallest group that holds the weights, `tp` inside a node before `dp_shard`."""
    room = WEIGHTS_SHARE * facts.memory_bytes
    divisors = [n for n in range(1, facts.num_ranks + 1) if facts.num_ranks % n == 0]
    size = next((n for n in divisors if facts.weights_bytes <= n * room), facts.num_ranks)
    tp = max(
        ways for ways in facts.tp_ways if size % ways == 0 and facts.ranks_per_node % ways == 0
    )
    return ParallelismUsed(
        dp_replicate=facts.num_ranks // size,
        dp_shard=size // tp,
        tp=tp,
        reason=_reason(facts, size, room),
    )


def _reason(facts: Facts, size: int, room: float) -> str:
    weights, share = _gib(facts.weights_bytes), _gib(room)
    if size == 1:
        return f"the weights ({weights}) fit into what a rank may use for them ({share})"
    if facts.weights_bytes > size * room:
        return (
            f"the weights ({weights}) do not fit into what all {size} ranks may use for them "
            f"({share} each); all of them share the model"
        )
    return (
        f"the weights ({weights}) do not fit into what a rank may use for them ({share}); "
        f"{size} ranks are the fewest that hold them"
    )


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def rank_memory_bytes(device: torch.device, rank: RankInfo) -> int:
    """Memory of one rank: its GPU's, or an equal share of the node's."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    node_bytes: float = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if CGROUP_LIMIT.is_file() and (limit := CGROUP_LIMIT.read_text().strip()) != "max":
        node_bytes = min(node_bytes, int(limit))
    return math.floor(node_bytes / rank.local_world_size)
