"""Exchange on two levels among real ranks: the right values, and what goes between nodes."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from evaluator.contract.env import RANKS_PER_NODE
from evaluator.contract.reports import Result, Traffic
from evaluator.exchange import process_group
from evaluator.exchange.hierarchy import ExactTotal
from evaluator.exchange.ranks import RankInfo
from evaluator.exchange.recorder import Recorder
from tests.support.runs import ROOT, launched, make_spec
from tests.support.tiny import words

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_RANKS = 4
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
    f"--nproc-per-node={NUM_RANKS}",
]
VALUES = (0.1, 0.2, 0.3, 1e-30)
"""Whose sum shows in what order they were added, unless it is exact."""


def work(folder: Path) -> None:
    """What each rank does; it runs under torchrun."""
    rank = RankInfo.from_env(os.environ)
    spec = make_spec(Path("m"), ["a"])
    peers = process_group.connect(rank, spec, Recorder(), while_waiting=lambda: None)
    peers.form_group(torch.device("cpu"))
    found: dict[str, Any] = {}
    before = Traffic()
    exchanges: dict[str, Callable[[], Any]] = {
        "reduce": lambda: peers.reduce(ExactTotal.of([VALUES[rank.rank]])),
        "gather": lambda: peers.gather(f"rank {rank.rank}"),
        "all_gather": lambda: peers.all_gather(f"rank {rank.rank}"),
    }
    for name, exchange in exchanges.items():
        value = exchange()
        after = peers.traffic.snapshot()
        sent = {k: n - getattr(before, k) for k, n in after.model_dump().items()}
        found[name] = {"value": getattr(value, "nll_nats", value), "sent": sent}
        before = after
    (folder / f"{rank.rank}.json").write_text(json.dumps(found))
    process_group.leave()


def run(folder: Path, ranks_per_node: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*TORCHRUN, "-m", "tests.distributed.test_collectives", folder],
        cwd=ROOT,
        env=os.environ | {RANKS_PER_NODE: str(ranks_per_node), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def sent(found: list[dict[str, Any]], name: str) -> Traffic:
    return sum((Traffic(**rank[name]["sent"]) for rank in found), start=Traffic())


@pytest.mark.parametrize("ranks_per_node", [1, 2, 4])
def test_ranks_exchange_on_two_levels(tmp_path: Path, ranks_per_node: int) -> None:
    found = run(tmp_path, ranks_per_node)
    names = [f"rank {rank}" for rank in range(NUM_RANKS)]
    assert [rank["reduce"]["value"] for rank in found] == [0.6, None, None, None]
    assert [rank["gather"]["value"] for rank in found] == [names, None, None, None]
    assert [rank["all_gather"]["value"] for rank in found] == [names] * NUM_RANKS

    num_nodes = NUM_RANKS // ranks_per_node
    reduced, gathered, all_gathered = (sent(found, n) for n in ("reduce", "gather", "all_gather"))
    for traffic in (reduced, gathered):
        assert traffic.num_between == num_nodes - 1
        assert traffic.num_inside == NUM_RANKS - num_nodes
    assert all_gathered.num_between == 2 * (num_nodes - 1)
    assert all_gathered.num_inside == 2 * (NUM_RANKS - num_nodes)

    # A leader sends the sum of its node, every other rank its own value.
    sums = [
        ExactTotal.of(VALUES[begin : begin + ranks_per_node])
        for begin in range(0, NUM_RANKS, ranks_per_node)
    ]
    between = sum(len(pickle.dumps(total)) for total in sums[1:])
    assert reduced.bytes_between == between
    if ranks_per_node == 2:
        # All of both ranks of the other node would go alone: half as many bytes, within the few
        # that sums of other sizes differ by.
        flat = sum(len(pickle.dumps(ExactTotal.of([value]))) for value in VALUES[2:])
        assert reduced.bytes_between == pytest.approx(flat / 2, rel=0.05)


def test_the_result_has_the_traffic_of_all_ranks(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = {"convention": "lm-eval", "window": 32, "batch_tokens": 64}
    spec = make_spec(tiny, [words(300, 1)], scoring=scoring)
    results: dict[int, Result] = {}
    for ranks_per_node in (1, 2):
        monkeypatch.setenv(RANKS_PER_NODE, str(ranks_per_node))
        with launched(spec, tmp_path / f"{ranks_per_node}", num_ranks=4) as ran:
            assert ran.wait() == 0, ran.output
            results[ranks_per_node] = ran.result()
    flat, levels = results[1].traffic, results[2].traffic
    assert results[1].perplexity == results[2].perplexity
    assert (flat.num_inside, flat.bytes_inside) == (0, 0)
    # Of 4 nodes of one rank three send to rank 0, of 2 nodes of two ranks one.
    assert flat.num_between == 3 * levels.num_between
    assert levels.num_inside == 2 * levels.num_between
    assert levels.bytes_between < flat.bytes_between
    assert levels.num_store > results[2].plan.num_batches / 8


if __name__ == "__main__":
    work(Path(sys.argv[1]))
