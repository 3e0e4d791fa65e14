"""What people see of a job: its head, its result, its ranks, and lists of jobs."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.numbers import (
    DASH,
    count,
    count_of,
    duration,
    operations,
    percent,
    plain,
    rate,
    size,
    time_left,
    with_decimals,
    with_error,
)

Json = dict[str, Any]

_STYLES = {
    "succeeded": "bold green",
    "failed": "bold red",
    "lost": "bold red",
    "timed_out": "bold red",
    "cancelled": "bold yellow",
}
_TIMES = ("load", "tokenise", "warm_up", "compute", "audit", "wait", "communicate")


def print_job(console: Console, job: Json) -> None:
    """Print everything about a job: head, result, ranks, attempts."""
    print_facts(console, _head(job))
    if job["result"] is not None:
        print_result(console, job)
    elif any(node["ranks"] for node in job["nodes"]):
        console.print()
        _print_ranks(console, job["nodes"])
    if len(job["attempts"]) > 1 or job["state"] in {"failed", "lost", "timed_out"}:
        console.print()
        _print_attempts(console, job["attempts"])


def print_end(console: Console, job: Json) -> None:
    """Print how a job ended: the result, or why there is none and where to look."""
    if job["state"] == "succeeded":
        print_result(console, job)
        return
    console.print(_sentence(job))
    if job["attempts"]:
        console.print(f"The log: assay logs {job['id']}", soft_wrap=True)


def print_result(console: Console, job: Json) -> None:
    """Print the figure, what it was computed from, and where the time went."""
    result = job["result"]
    console.print()
    print_facts(console, _figures(result["perplexity"]))
    console.print()
    print_facts(console, _conditions(result, job["nodes"]))
    console.print()
    _print_ranks(console, job["nodes"])
    if len(result["scored_by"]) > 1:
        console.print()
        _print_shares(console, result["scored_by"])
    _print_contexts(console, result["nll_by_context"])
    _print_audit(console, result["audit"]["sample"])
    num_findings = result["audit"]["num_findings"]
    if num_findings:
        text = f"Audit: {count_of(num_findings, 'repetition')} of a batch gave other numbers"
        console.print(Text(text, style="bold red"), soft_wrap=True)
    for warning in result["warnings"]:
        console.print(Text(f"Warning: {plain(warning)}", style="yellow"), soft_wrap=True)


def print_list(console: Console, page: Json) -> None:
    """Print one page of jobs."""
    table = make_table("job", "state", "created (UTC)", "perplexity", "scored tokens", "labels")
    for job in page["items"]:
        result = job["result"] or {}
        table.add_row(
            job["id"],
            state_text(job["state"]),
            moment(job["created_at"]),
            with_error(result["token_perplexity"], result["token_perplexity_standard_error"])
            if result
            else DASH,
            count(result.get("num_scored_tokens")),
            _labels(job["labels"]),
        )
    if page["items"]:
        console.print(table)
    else:
        console.print("No jobs.")
    if page["next_cursor"] is not None:
        console.print(f"More: repeat with --cursor {page['next_cursor']}", soft_wrap=True)


def state_text(state: str) -> Text:
    """Return a state in its colour."""
    return Text(plain(state).replace("_", " "), style=_STYLES.get(state, "cyan"))


def moment(time: str | None) -> str:
    """Return an RFC 3339 time to the second."""
    return DASH if time is None else time[:19].replace("T", " ")


def _sentence(job: Json) -> Text:
    text = Text.assemble(f"Job {job['id']} ", state_text(job["state"]))
    if job["state_reason"]:
        text.append(f" ({job['state_reason']})")
    if job["message"]:
        text.append(f": {plain(job['message'])}")
    return text


def _labels(labels: dict[str, str]) -> str:
    return ", ".join(f"{plain(key)}={plain(value)}" for key, value in sorted(labels.items()))


def _head(job: Json) -> Iterable[tuple[str, str | Text]]:
    yield "job", job["id"]
    yield "state", state_text(job["state"])
    if job["state_reason"]:
        yield "reason", job["state_reason"]
    if job["message"]:
        yield "message", plain(job["message"])
    progress = job["progress"]
    if not job["is_terminal"] and progress["stage"]:
        yield "progress", describe_progress(progress)
    yield "attempt", f"{job['attempt']}, {job['attempts_left']} left"
    yield "created", f"{moment(job['created_at'])} UTC"
    for name in ("started", "ended"):
        if job[f"{name}_at"]:
            yield name, f"{moment(job[f'{name}_at'])} UTC"
    if job["priority"]:
        yield "priority", str(job["priority"])
    if job["labels"]:
        yield "labels", _labels(job["labels"])


def describe_progress(progress: Json) -> str:
    """Return stage, part done, speed and time left in one line."""
    parts = [plain(progress["stage"] or "waiting").replace("_", " ")]
    if progress["fraction"] is not None:
        parts.append(percent(progress["fraction"]))
    if progress["num_batches"]:
        parts.append(f"{progress['num_batches_done']}/{progress['num_batches']} batches")
    return ", ".join((*parts, *speed_and_time_left(progress)))


def speed_and_time_left(progress: Json) -> Sequence[str]:
    """Return what is known of tokens/s and ETA."""
    parts = []
    if progress["tokens_per_second"]:
        parts.append(f"{rate(progress['tokens_per_second'])} tokens/s")
    if progress["eta_seconds"] is not None:
        parts.append(f"ETA {time_left(progress['eta_seconds'])}")
    return parts


def _figures(figure: Json) -> Iterable[tuple[str, str | Text]]:
    value, error = figure["token_perplexity"], figure["token_perplexity_standard_error"]
    yield "token perplexity", Text(with_error(value, error), style="bold")
    interval = figure["token_perplexity_interval_95"]
    if interval is None:
        clusters = figure["standard_error_clusters"]
        yield (
            "95 % interval",
            f"none: two {clusters} are needed, there is {count(figure['num_clusters'])}",
        )
    else:
        low, high = (with_decimals(end, error) for end in interval)
        clusters = f"{count(figure['num_clusters'])} {figure['standard_error_clusters']}"
        yield "95 % interval", f"{low} to {high}, from {clusters}"
    yield "bits per byte", with_error(figure["bits_per_byte"], _bits_error(figure))
    if figure["num_words"]:
        yield "word perplexity", with_error(figure["word_perplexity"], None)
    yield "scored tokens", f"{count(figure['num_scored_tokens'])} of {count(figure['num_tokens'])}"
    yield (
        "text",
        f"{count_of(figure['num_documents'], 'document')}, "
        f"{count_of(figure['num_windows'], 'window')}, {size(figure['num_bytes'])}",
    )
    excluded = {reason: number for reason, number in figure["excluded_documents"].items() if number}
    for reason, number in sorted(excluded.items()):
        yield "excluded", f"{count_of(number, 'document')}: {plain(reason).replace('_', ' ')}"
    for reason, number in sorted(figure["excluded_tokens"].items()):
        yield "not scored", f"{count_of(number, 'token')}: {plain(reason).replace('_', ' ')}"


def _bits_error(figure: Json) -> float | None:
    """Return the error of bits per byte: that of the mean nll, in proportion."""
    mean, error = figure["mean_nll_nats"], figure["mean_nll_standard_error"]
    if error is None or not mean:
        return None
    return abs(float(figure["bits_per_byte"]) * float(error) / float(mean))


def _conditions(result: Json, nodes: Sequence[Json]) -> Iterable[tuple[str, str]]:
    scoring = result["scoring"]
    yield (
        "convention",
        f"{plain(scoring['convention'])}, window {count(scoring['window'])}, "
        f"stride {count(scoring['stride'])}, prefix {scoring['prefix']}",
    )
    yield "", plain(scoring["definition"])
    yield (
        "computed on",
        f"{plain(result['device'])}, {plain(result['dtype'])}, "
        f"{count_of(result['world_size'], 'rank')} of "
        f"{count_of(result['threads_per_rank'], 'thread')}",
    )
    used = result["parallelism"]
    shared = [f"{name} {used[name]}" for name in ("dp_shard", "tp", "cp") if used[name] > 1]
    if shared or used["reason"]:
        parts = [count_of(used["dp_replicate"], "scoring group"), *shared, plain(used["reason"])]
        yield "parallelism", ", ".join(part for part in parts if part)
    speeds = [_speed(rank) or 0.0 for node in nodes for rank in node["ranks"]]
    yield "time", f"{duration(result['wall_seconds'])}, {rate(sum(speeds))} scored tokens/s"
    yield "efficiency", _efficiency(result["efficiency"])
    if result["num_batches_resumed"]:
        yield "taken over", f"{count(result['num_batches_resumed'])} batches of earlier attempts"


def _efficiency(found: Json) -> str:
    """Return how near a rank came to what it could do."""
    if found["why_unknown"] is not None:
        return f"not known: {plain(found['why_unknown'])}"
    return (
        f"{operations(found['operations_per_second'])} a rank, {percent(found['peak_share'])} of "
        f"its peak; {size(round(found['bytes_per_second']))}/s of weights, "
        f"{percent(found['bandwidth_share'])} of its bandwidth; bound by {found['bound']}"
    )


_SHARE = ("batches", "windows", "scored_tokens", "computed")


def _print_shares(console: Console, shares: Sequence[Json]) -> None:
    table = make_table("attempt", "node", "batches", "windows", "tokens", "computed")
    for share in shares:
        table.add_row(
            str(share["attempt"]),
            f"{share['node_rank']} {plain(share['host'])}",
            *(count(share[f"num_{name}"]) for name in _SHARE),
        )
    for column in table.columns[2:]:
        column.justify = "right"
    console.print(Text("Scored, by attempt and node", style="dim"))
    console.print(table)


def _print_audit(console: Console, sample: Json) -> None:
    for suspect in sample["quarantined"]:
        author, window = suspect["author"], suspect["window"]
        first, *others = suspect["ranks"]
        ranks = f"ranks {first} to {others[-1]}" if others else f"rank {first}"
        text = (
            f"Audit: {ranks} on node {author['node_rank']} {plain(author['host'])} "
            f"{'were' if others else 'was'} wrong in attempt {author['attempt']} "
            f"({suspect['reason'].replace('_', ' ')})"
        )
        if window is not None:
            text += (
                f": document {window['document']}, token {window['begin']} on: "
                f"{window['nll_nats']} nats, others say {window['nll_nats_by_others']}"
            )
        text += f". Its {count(suspect['num_batches'])} batches were scored again"
        console.print(Text(text, style="bold red"), soft_wrap=True)


BAR_CHARACTERS = 30


def _print_contexts(console: Console, curve: Sequence[Json]) -> None:
    """A bar for each bucket, from zero; the numbers beside it can be copied."""
    if len(curve) < 2:
        return
    table = make_table("context (tokens)", "scored tokens", "mean nll (nats)", "")
    highest = max(float(each["mean_nll_nats"]) for each in curve)
    for each in curve:
        first, last = each["first_context"], each["last_context"]
        mean = float(each["mean_nll_nats"])
        table.add_row(
            count(first) if first == last else f"{count(first)} to {count(last)}",
            count(each["num_scored_tokens"]),
            f"{mean:.4f}",
            "\u2588" * round(BAR_CHARACTERS * mean / highest) if highest > 0 else "",
        )
    for column in table.columns[:3]:
        column.justify = "right"
    console.print(Text("Mean nll by tokens before the scored one", style="dim"))
    console.print(table)


def _print_ranks(console: Console, nodes: Sequence[Json]) -> None:
    names = (name.replace("_", "-") for name in _TIMES)
    table = make_table("node", "rank", *names, "tokens", "tokens/s", "peak")
    for node in nodes:
        for rank in node["ranks"]:
            table.add_row(
                f"{node['node_rank']} {plain(node['host'])}",
                str(rank["rank"]),
                *(f"{rank[f'{name}_seconds']:.2f}" for name in _TIMES),
                count(rank["num_scored_tokens"]),
                rate(_speed(rank)),
                size(rank["peak_memory_bytes"]),
            )
    for column in table.columns[2:]:
        column.justify = "right"
    console.print(Text("Times in seconds, peak memory, by rank", style="dim"))
    console.print(table)


def _speed(rank: Json) -> float | None:
    busy_s = sum(rank[f"{name}_seconds"] for name in ("compute", "wait", "communicate"))
    return rank["num_scored_tokens"] / busy_s if busy_s else None


def _print_attempts(console: Console, attempts: Sequence[Json]) -> None:
    table = make_table("attempt", "started (UTC)", "ended (UTC)", "reason", "exit", "message")
    for attempt in attempts:
        ended_by = attempt["exit_code"]
        if attempt["signal"] is not None:
            ended_by = f"signal {attempt['signal']}"
        table.add_row(
            str(attempt["number"]),
            moment(attempt["started_at"]),
            moment(attempt["ended_at"]),
            attempt["reason"] or DASH,
            DASH if ended_by is None else str(ended_by),
            plain(attempt["message"] or ""),
        )
    console.print(table)


def make_table(*headers: str) -> Table:
    """Return a table without lines."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def print_facts(console: Console, facts: Iterable[tuple[str, str | Text]]) -> None:
    """Print names with their values."""
    rows = list(facts)
    if not console.is_terminal:  # a grid would fill every line up with spaces
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            console.print(f"{name:<{width}}  {value}", soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    console.print(grid)
