"""`assay nodes`, as people see it."""

import io
from typing import Any

from rich.console import Console

from app.api.node_schemas import NodesView
from app.cli.render_nodes import print_nodes
from tests.unit.test_cli_render import RANK

SLOW = RANK | {"rank": 1, "compute_seconds": 24.0, "wait_seconds": 0.0, "num_leases": 2}
SPEEDS = {
    "least_seconds": 0.0025,
    "most_seconds": 0.003,
    "ratio": 1.2,
    "coefficient_of_variation": 0.09,
}
SLOWEST = {
    "rank": 1,
    "node_rank": 0,
    "reason": "slow_compute",
    "load_excess_seconds": 0.0,
    "compute_excess_seconds": 4.0,
    "waiting_seconds": 1.0,
}


def printed(**found: Any) -> list[str]:
    ranks = found.pop("ranks")
    node = {"node_rank": 0, "host": "alpha", "ranks": ranks}
    view = NodesView.model_validate({"nodes": [node]} | found)
    console = Console(file=io.StringIO(), width=200, highlight=False, markup=False)
    print_nodes(console, view.model_dump(mode="json"))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_the_slowest_rank_is_told_with_its_reason() -> None:
    assert printed(ranks=[RANK, SLOW], speeds=SPEEDS, slowest=SLOWEST) == [
        "node rank tokens busy waiting exchange leases speed",
        "0 alpha 0 8,000 20.00 s (66 %) 4.00 s (13 %) 1.00 s (3 %) 3 400 tokens/s",
        "0 alpha 1 8,000 24.00 s (80 %) 0.00 s (0 %) 1.00 s (3 %) 2 333 tokens/s",
        "",
        "slowest to fastest 1.20 times the seconds for a token",
        "slowest rank 1 on node 0: it computes slowly; it took 4.00 s more than its part would "
        "take others",
    ]


def test_a_single_rank_is_compared_with_nobody() -> None:
    lines = printed(ranks=[RANK | {"compute_seconds": 0.0}], speeds=None, slowest=None)
    assert lines[1:] == ["0 alpha 0 8,000 0.00 s (0 %) 4.00 s (13 %) 1.00 s (3 %) 3 -"]
