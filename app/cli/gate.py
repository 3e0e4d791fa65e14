"""`assay gate` and `assay promote`: whether a finished job may go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from app.cli.client import Client
from app.cli.gate_summary import gate_lines, write_summary
from app.cli.options import (
    DEFAULT_SERVER,
    EXIT_JOB,
    EXIT_OK,
    EXIT_UNSURE,
    JobArgument,
    JsonOption,
    ServerOption,
    make_console,
    parse_labels,
    read_object,
    refuse,
    write_json,
)
from app.cli.render import print_facts

Json = dict[str, Any]

_DEFAULT_NAME = "default"
_EXIT_CODES = {"pass": EXIT_OK, "regression": EXIT_JOB}

BaselineOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        help="A job_... id, the NAME of a promoted job, or KEY=VALUE (may be repeated) for the "
        "newest success with these labels (the job promoted as default).",
    ),
]
MaxRegressionOption = Annotated[
    str | None,
    typer.Option(metavar="PERCENT", help="The least regression that matters (0.5%)."),
]
LevelOption = Annotated[
    float | None, typer.Option(min=0.001, max=0.2, help="Chance of either error (0.05).")
]
MeasureOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="perplexity, or bits-per-byte, also for different tokenizers (perplexity).",
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE=VALUE",
        help="At most so much, for example token_perplexity=20; may be repeated.",
    ),
]
MaxSlowdownOption = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT", help="Judge the speed too, by repeated runs: the least loss that counts."
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--file", metavar="FILE", help="Baseline and rules in JSON, - for stdin."),
]
SummaryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--summary",
        metavar="FILE",
        help="Write the verdict of the gate there: JUnit where it ends in .xml, else Markdown; may "
        "be repeated.",
    ),
]


@dataclass(frozen=True)
class GateAsked:
    """What is asked of a candidate, and where the verdict is written."""

    policy: Json
    """A request of `POST /v1/gates/evaluations` without its candidate."""
    summaries: Sequence[Path]

    @classmethod
    def make(cls, policy: Json, summaries: Sequence[str] | None, *, option: str | None) -> Self:
        """Check both before a job is run for hours; empty the summaries of an earlier gate.

        Ends with exit code 2 where they are wrong; `option` is where the policy comes from.
        """
        # Here: the server's models take longer to import than all other commands need.
        from pydantic import ValidationError

        from app.gates.rules import GateRequest

        if "candidate" in policy:
            refuse("the candidate is the job, not part of the rules", option=option)
        try:
            GateRequest.model_validate({"candidate": "job", **policy})
        except ValidationError as error:
            first = error.errors()[0]
            place = "/".join(map(str, first["loc"]))
            refuse(f"{place}: {first['msg']}", option=option)
        paths = [Path(name) for name in summaries or ()]
        for path in paths:
            try:
                path.write_text("")
            except OSError as error:
                refuse(f"{path} can't be written: {error.strerror}", option="--summary")
        return cls(policy, paths)


def gate(
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="Id of the job in question.")
    ],
    baseline: BaselineOption = None,
    max_regression: MaxRegressionOption = None,
    level: LevelOption = None,
    measure: MeasureOption = None,
    limit: LimitOption = None,
    max_slowdown: MaxSlowdownOption = None,
    file: PolicyOption = None,
    summary: SummaryOption = None,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Judge a finished job against a baseline, by the paired difference and its error.

    Exit code 0: it passes. 1: a regression. 3: it can't be told, or there is no baseline.
    """
    most = _percent(max_regression, option="--max-regression")
    change = {"max_regression_percent": most, "level": level}
    given = {name: value for name, value in change.items() if value is not None}
    if file is not None:
        if given or baseline or measure or limit or max_slowdown:
            refuse("--file has baseline and rules: leave their options away")
        policy = read_object(file, option="--file")
    else:
        rules = [{"kind": _kind(measure), **given}, *map(_limit, limit or ())]
        if max_slowdown is not None:
            loss = _percent(max_slowdown, option="--max-slowdown")
            speed = {"kind": "tokens_per_second", "max_regression_percent": loss}
            rules.append(speed if level is None else {**speed, "level": level})
        policy = {"baseline": _baseline(baseline or [_DEFAULT_NAME]), "rules": rules}
    asked = GateAsked.make(policy, summary, option="--file" if file else None)
    with Client(server) as client:
        raise typer.Exit(print_gate(client, candidate, asked, as_json=as_json))


def print_gate(client: Client, candidate: str, asked: GateAsked, *, as_json: bool) -> int:
    """Ask for the verdict, print and write it; return the exit code."""
    document = client.gate({"candidate": candidate, **asked.policy})
    found = document.data
    if as_json:
        write_json(document.text)
    else:
        print_facts(make_console(), gate_lines(found))
    for path in asked.summaries:
        try:
            write_summary(path, found)
        except OSError as error:
            refuse(f"{path} can't be written: {error.strerror}", option="--summary")
    return _EXIT_CODES.get(found["verdict"], EXIT_UNSURE)


def promote(
    job: JobArgument,
    name: Annotated[str, typer.Option(metavar="NAME", help="What gates call it.")] = _DEFAULT_NAME,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Make a job that has succeeded the baseline that candidates are compared with."""
    with Client(server) as client:
        document = client.promote(name, job)
    if as_json:
        write_json(document.text)
    else:
        make_console().print(f"{document.data['job']} is the baseline {document.data['name']!r}")


def _baseline(words: Sequence[str]) -> Json:
    """Return the selector that is meant, or end with exit code 2."""
    if all("=" in word for word in words):
        return {"kind": "newest", "labels": parse_labels(words)}
    if len(words) > 1:
        refuse("several are labels: write each KEY=VALUE", option="--baseline")
    (word,) = words
    if word.startswith("job_"):
        return {"kind": "job", "job": word}
    return {"kind": "promoted", "name": word}


def _kind(measure: str | None) -> str:
    kinds = {None: "perplexity", "perplexity": "perplexity", "bits-per-byte": "bits_per_byte"}
    if measure not in kinds:
        refuse(f"{measure!r}: write perplexity or bits-per-byte", option="--measure")
    return kinds[measure]


def _limit(word: str) -> Json:
    figure, _, value = word.partition("=")
    try:
        return {"kind": "limit", "figure": figure, "at_most": float(value)}
    except ValueError:
        refuse(f"{word!r}: write FIGURE=VALUE, like token_perplexity=20", option="--limit")


def _percent(written: str | None, *, option: str) -> float | None:
    """Return the number of `0.5%` or `0.5`, or end with exit code 2."""
    try:
        return None if written is None else float(written.removesuffix("%"))
    except ValueError:
        refuse(f"{written!r} is no percentage: write 0.5%", option=option)
