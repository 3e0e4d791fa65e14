"""Writes the tables and plots of docs/scaling.md; the words between them stay."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.bench.scaling.costs import BATCH_TOKENS, Measured
from tests.bench.scaling.job import Job
from tests.bench.scaling.plot import Plot, Series
from tests.bench.scaling.real_ranks import PER_NODE, RealRun
from tests.bench.scaling.real_ranks import WINDOW as SCORED_WINDOW
from tests.bench.scaling.simulation import simulate
from tests.bench.scaling.sweep import (
    LARGEST,
    NODE_LIFE_S,
    RANKS_PER_NODE,
    Row,
    costs_of,
)

SHARE = 0.02
"""Of the time, that makes something a limit."""


def write_page(
    path: Path,
    machine: dict[str, Any],
    costs: Measured,
    runs: Sequence[RealRun],
    rows: Sequence[Row],
) -> None:
    """Fill each part between `<!-- NAME -->` and `<!-- end -->`, and draw the plots.

    Raises:
        ValueError: The page lacks a part.
    """
    parts = {
        "machine": _machine(machine),
        "costs": _costs(costs),
        "ranks": _ranks(runs),
        "compared": _compared(costs, runs),
        "uneven": _simulated(row for row in rows if row.name == "uneven"),
        "bytes": _bytes(rows),
        "alike": _simulated(row for row in rows if row.name == "alike"),
        "death": _deaths(rows),
        "limits": _limits(rows),
        "bounds": f"{_bounds(rows)}\n\n{_size_at_the_bar(_best(rows)[-1])}",
    }
    text = path.read_text()
    for name, content in parts.items():
        text = _fill(text, name, content)
    path.write_text(text)
    for name, plot in (("lost", _lost_plot(rows)), ("bytes", _bytes_plot(rows))):
        (path.parent / "scaling" / f"{name}.svg").write_text(plot.svg())


def _fill(text: str, name: str, content: str) -> str:
    head, begin, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    if not (begin and end):
        msg = f"the page has no part named {name}"
        raise ValueError(msg)
    return f"{head}{begin}{content}\n{end}{tail}"


def _table(head: str, lines: Iterable[Sequence[object]]) -> str:
    columns = head.count("|") + 1
    return "\n".join(
        [f"| {head} |", "|" + "---|" * columns]
        + ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    )


def _machine(machine: dict[str, Any]) -> str:
    return (
        f"{machine['processor']}, {machine['num_cores']} cores, Python {machine['python']}, torch "
        f"{machine['versions']['torch']}; load of the machine afterwards "
        f"{machine['load'][0]:.1f}; commit `{machine['commit']}`."
    )


def _costs(costs: Measured) -> str:
    low, high = costs.spread[0], costs.spread[-1]
    return _table(
        "what | measured",
        [
            (
                f"a batch of {BATCH_TOKENS} tokens on one core, mean of {len(costs.spread)}",
                f"{costs.seconds_per_token * BATCH_TOKENS:.2f} s, {low:.2f} to {high:.2f} of that",
            ),
            ("a rank until it can score", f"{costs.start_s:.1f} s"),
            ("from a death to the next attempt's ranks", f"{costs.turnaround_s:.1f} s"),
            ("a request, at the store", f"{1e6 * costs.store_service_s:.1f} us"),
            (
                "a finished batch on its way",
                f"{costs.entry_bytes:.0f} bytes, read in "
                f"{1e6 * costs.entry_bytes / costs.loads_bytes_per_s:.1f} us",
            ),
            ("rank 0 alone at the end", f"{1e6 * costs.result_s_per_batch:.1f} us a batch"),
        ],
    )


def _ranks(runs: Sequence[RealRun]) -> str:
    return _table(
        "ranks | nodes | wall | busy, all ranks | waiting | communicating | leases "
        "| requests to the store | bytes inside | messages between | bytes between",
        [
            (
                run.num_ranks,
                max(1, run.num_ranks // 2),
                f"{run.wall_s:.2f} s",
                f"{run.busy_s:.2f} s",
                f"{run.waiting_s:.2f} s",
                f"{run.communicating_s:.2f} s",
                run.num_leases,
                run.num_store,
                run.bytes_inside,
                run.num_between,
                run.bytes_between,
            )
            for run in runs
        ],
    )


def _compared(costs: Measured, runs: Sequence[RealRun]) -> str:
    """The real runs and the same jobs simulated, by what does not depend on how fast cores are."""
    lines = []
    for run in runs:
        per_node = min(PER_NODE, run.num_ranks)
        job = Job(
            num_nodes=run.num_ranks // per_node,
            ranks_per_node=per_node,
            num_batches=run.num_batches,
            scheduling="dynamic",
            windows_per_batch=round(run.num_windows / run.num_batches),
            window=SCORED_WINDOW,
        )
        batch_s = run.busy_s / run.num_batches
        outcome = simulate(job, costs_of(costs, batch_s), (1.0,) * run.num_ranks)
        num_leases = sum(timing.num_leases for timing in outcome.timings)
        traffic = outcome.traffic
        real = run.num_leases, run.bytes_inside, run.bytes_between
        virtual = num_leases, traffic.bytes_inside, traffic.bytes_between
        pairs = [f"{a} / {b}" for a, b in zip(real, virtual, strict=True)]
        lines.append((run.num_ranks, *pairs))
    return _table("ranks | leases | bytes inside | bytes between", lines)


def _simulated(rows: Iterable[Row]) -> str:
    return _table(
        "nodes | scheduling | wall | ideal | of the ideal | waiting | communicating",
        [
            (
                row.num_nodes,
                f"`{row.scheduling}`",
                f"{row.wall_s:.1f} s",
                f"{row.ideal_s:.1f} s",
                f"{row.efficiency:.4f}",
                f"{100 * row.waiting_share:.2f} %",
                f"{100 * row.communicating_share:.3f} %",
            )
            for row in sorted(rows, key=lambda row: (row.num_nodes, row.scheduling))
        ],
    )


def _best(rows: Sequence[Row]) -> list[Row]:
    """By size, uneven nodes with the best scheduling."""
    found = (row for row in rows if (row.name, row.scheduling) == ("uneven", "predictive"))
    return sorted(found, key=lambda row: row.num_nodes)


def _bytes(rows: Sequence[Row]) -> str:
    return _table(
        "nodes | bytes inside nodes | bytes between nodes | requests to the store | store busy",
        [
            (
                row.num_nodes,
                row.bytes_inside,
                row.bytes_between,
                row.num_requests,
                f"{100 * row.store_busy_share:.3f} %",
            )
            for row in _best(rows)
        ],
    )


def _deaths(rows: Sequence[Row]) -> str:
    whole = {row.num_nodes: row for row in _best(rows)}
    lines = []
    for row in sorted((r for r in rows if r.name == "death"), key=lambda row: row.num_nodes):
        clean = whole[row.num_nodes]
        share = clean.wall_s * row.num_nodes / NODE_LIFE_S
        mean_s = clean.wall_s + share * (row.wall_s - clean.wall_s)
        lines.append(
            (
                row.num_nodes,
                f"{clean.efficiency:.4f}",
                f"{row.efficiency:.4f}",
                row.num_begun_again,
                f"{100 * share:.3f} %",
                f"{clean.ideal_s / mean_s:.4f}",
            )
        )
    return _table(
        "nodes | of the ideal, no death | one death | batches begun again "
        "| jobs with a death | of the ideal, mean",
        lines,
    )


def _limits(rows: Sequence[Row]) -> str:
    return _table(
        "a batch takes | wall | of the ideal | exchange and rank 0 alone | store busy "
        "| longest queue at the store | communicating",
        [
            (
                f"{row.batch_s:g} s",
                f"{row.wall_s:.2f} s",
                f"{row.efficiency:.4f}",
                f"{100 * (row.wall_s - row.scored_s) / row.wall_s:.1f} %",
                f"{100 * row.store_busy_share:.1f} %",
                f"{row.longest_queue_ms:.1f} ms",
                f"{100 * row.communicating_share:.2f} %",
            )
            for row in _of_largest(rows)
        ],
    )


def _of_largest(rows: Sequence[Row]) -> list[Row]:
    """The largest job by the time of its batches, the longest first."""
    found = [row for row in rows if row.name == "limits"]
    found += [row for row in _best(rows) if row.num_nodes == LARGEST]
    return sorted(found, key=lambda row: -row.batch_s)


def _bounds(rows: Sequence[Row]) -> str:
    """Sizes at which leader and counter take too much, in proportion from the largest job."""
    lines = []
    for row in _of_largest(rows):
        leader = (row.wall_s - row.scored_s) / row.scored_s
        counter = row.store_busy_share * row.wall_s / row.scored_s
        lines.append(
            (
                f"{row.batch_s:g} s",
                f"{_rounded(SHARE * row.num_nodes / leader)} nodes",
                f"{_rounded(row.num_nodes / counter)} nodes",
            )
        )
    return _table("a batch takes | the leader adds 2 % from | the counter is full at", lines)


def _size_at_the_bar(largest: Row) -> str:
    tail = (largest.scored_s - largest.ideal_s) / largest.wall_s
    leader = (largest.wall_s - largest.scored_s) / largest.wall_s
    num_nodes = (SHARE - tail) / leader * largest.num_nodes
    return (
        f"With the measured batches the whole falls below {1 - SHARE} of the ideal at about "
        f"{_rounded(num_nodes)} nodes: {100 * tail:.2f} % of the time is lost while the last "
        f"batches are scored, whatever the number of nodes, and {100 * leader:.2f} % to the "
        f"exchange and the leader at {largest.num_nodes} nodes, in proportion to their number."
    )


def _rounded(value: float) -> int:
    """To two digits."""
    return int(float(f"{value:.1e}"))


def _lost_plot(rows: Sequence[Row]) -> Plot:
    series = []
    for scheduling in ("predictive", "dynamic", "static"):
        found = [row for row in rows if (row.name, row.scheduling) == ("uneven", scheduling)]
        points = sorted((row.num_nodes, 100 * (1 - row.efficiency)) for row in found)
        series.append(Series(scheduling, points))
    return Plot(
        title="Time lost against the ideal, 1 % of the nodes three times slower",
        x_label=f"simulated nodes, {RANKS_PER_NODE} ranks each",
        y_label="lost time, % of wall time",
        series=series,
        bar=100 * SHARE,
        bar_name="bar: 2 %",
    )


def _bytes_plot(rows: Sequence[Row]) -> Plot:
    best = _best(rows)
    return Plot(
        title="Bytes that ranks send, 200 batches for each node",
        x_label=f"simulated nodes, {RANKS_PER_NODE} ranks each",
        y_label="bytes in all",
        series=[
            Series("between nodes", [(r.num_nodes, r.bytes_between) for r in best[1:]]),
            Series("inside nodes", [(r.num_nodes, r.bytes_inside) for r in best]),
        ],
    )
