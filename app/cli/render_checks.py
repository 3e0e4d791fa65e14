"""What people see of two jobs side by side, and of a job that was scored again."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from app.cli.numbers import DASH, count, count_of, plain, with_decimals, with_error
from app.cli.render import make_table, print_facts

Json = dict[str, Any]


def print_comparison(console: Console, found: Json) -> None:
    """Print two jobs side by side, and what it comes to."""
    print_facts(console, _comparison(found))
    console.print()
    console.print(plain(found["sentence"]), soft_wrap=True)


def print_verdict(console: Console, verdict: Json) -> None:
    """Print how far the windows of a job are from their reference."""
    table = make_table("document", "token", "scored", "nll of the job", "reference", "relative")
    for window in verdict["windows"]:
        table.add_row(
            count(window["document"]),
            count(window["begin"]),
            count(window["num_scored"]),
            f"{window['job_nats']:.9f}",
            f"{window['reference_nats']:.9f}",
            f"{window['relative']:.1e}",
        )
    for column in table.columns:
        column.justify = "right"
    console.print(table)
    console.print()
    print_facts(console, _verdict(verdict))


def _comparison(found: Json) -> Iterable[tuple[str, str | Text]]:
    unit = found["measure"].replace("_", " ")
    error = found["standard_error"]
    for name in ("baseline", "candidate"):
        yield name, f"{with_decimals(found[name]['value'], error)} {unit}, {found[name]['job']}"
    yield "difference", Text(f"{_signed(found['difference'], error)} {unit}", style="bold")
    if found["interval_95"] is not None:
        yield "95 % interval", _range(found["interval_95"], error)
    ratio, ends = found["perplexity_ratio"], found["perplexity_ratio_interval_95"]
    if ratio is not None:
        ratio_error = None if error is None else ratio * error
        shown = with_decimals(ratio, ratio_error)
        if ends is not None:
            shown += f" ({_range(ends, ratio_error)})"
        yield "perplexity ratio", shown
    yield (
        "paired by",
        f"{count_of(found['num_pairs'], found['unit'])}; independent: "
        f"{count_of(found['num_clusters'], found['clusters'].removesuffix('s'))}",
    )
    if found["num_unpaired_documents"]:
        yield "left out", f"{count_of(found['num_unpaired_documents'], 'document')} of one job only"
    yield (
        "better, worse, same",
        f"{count(found['wins'])}, {count(found['losses'])}, {count(found['ties'])}",
    )
    signs = found["sign_test"]
    if signs["p_value"] is not None:
        yield (
            "sign test",
            f"p = {signs['p_value']:.2g}, {found['clusters']}: {count(signs['wins'])} better, "
            f"{count(signs['losses'])} worse",
        )
    for each in found["differs"]:
        yield plain(each["name"]), f"{plain(each['baseline'])} -> {plain(each['candidate'])}"


def _signed(value: float, error: float | None) -> str:
    """Return a difference with its sign and its error."""
    return f"{'+' if value > 0 else ''}{with_error(value, error)}"


def _range(ends: Sequence[float], error: float | None) -> str:
    low, high = (with_decimals(end, error) for end in ends)
    return f"{low} to {high}"


def _verdict(verdict: Json) -> Iterable[tuple[str, str | Text]]:
    yield (
        "scored again",
        f"{count(verdict['num_windows_checked'])} of "
        f"{count_of(verdict['num_windows'], 'window')}, "
        f"{count_of(verdict['num_tokens_checked'], 'token')}",
    )
    for name, of in (("job", ""), ("reference", "_reference")):
        value = verdict[f"sample_perplexity{of}"]
        yield f"perplexity, {name}", DASH if value is None else f"{value:.10g}"
    yield (
        "largest difference",
        f"{verdict['largest_absolute']:.1e} nats, relative {verdict['largest_relative']:.1e}",
    )
    limit = f"limit {verdict['tolerance']:.0e} relative"
    if verdict["ok"]:
        yield "verdict", Text(f"agrees ({limit})", style="bold green")
    else:
        yield "verdict", Text(f"DIFFERS ({limit})", style="bold red")
