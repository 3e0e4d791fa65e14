"""How even the ranks of a job are, as people see it."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console

from app.cli.numbers import DASH, count, percent, plain, rate
from app.cli.render import make_table, print_facts

Json = dict[str, Any]

_REASONS = {
    "slow_compute": "it computes slowly",
    "slow_load": "it was late to begin",
    "waiting": "it waits for others",
}


def print_nodes(console: Console, found: Json) -> None:
    """Print where the time of each rank went, and who is slow."""
    table = make_table("node", "rank", "tokens", "busy", "waiting", "exchange", "leases", "speed")
    for node in found["nodes"]:
        for rank in node["ranks"]:
            busy_s = rank["compute_seconds"]
            table.add_row(
                f"{node['node_rank']} {plain(node['host'])}",
                str(rank["rank"]),
                count(rank["num_input_tokens"]),
                *(_share(rank, name) for name in ("compute", "wait", "communicate")),
                count(rank["num_leases"]),
                f"{rate(rank['num_input_tokens'] / busy_s)} tokens/s" if busy_s else DASH,
            )
    for column in table.columns[2:]:
        column.justify = "right"
    console.print(table)
    facts = list(_facts(found))
    if facts:
        console.print()
        print_facts(console, facts)


def _share(rank: Json, name: str) -> str:
    """Return a rank's seconds, and their part of the time since it began."""
    seconds, wall_s = rank[f"{name}_seconds"], rank["wall_seconds"]
    return f"{seconds:.2f} s ({percent(seconds / wall_s)})" if wall_s else DASH


def _facts(found: Json) -> Iterable[tuple[str, str]]:
    speeds, slowest = found["speeds"], found["slowest"]
    if speeds is not None:
        yield "slowest to fastest", f"{speeds['ratio']:.2f} times the seconds for a token"
    if slowest is None:
        return
    lost = slowest["load_excess_seconds"] + slowest["compute_excess_seconds"]
    yield (
        "slowest",
        f"rank {slowest['rank']} on node {slowest['node_rank']}: {_REASONS[slowest['reason']]}; "
        f"it took {lost:.2f} s more than its part would take others",
    )
