"""Options that several commands share, exit codes, and where output goes."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from evaluator.contract.strict_json import RepeatedMember, unique_members

EXIT_OK = 0
EXIT_JOB = 1
"""The job did not succeed, or its figure does not come out again, or a gate finds a regression."""
EXIT_USAGE = 2
"""The command line is wrong."""
EXIT_UNSURE = 3
"""A gate can't tell: the text is too short, or there is no baseline."""
EXIT_SERVER = 4
"""The server refused, or could not be reached; with a gate: or the job did not succeed."""
EXIT_INTERRUPTED = 130
"""Somebody pressed Ctrl-C."""

DEFAULT_SERVER = "http://127.0.0.1:8321"
_WIDE = 10_000

ServerOption = Annotated[
    str,
    typer.Option("--server", envvar="ASSAY_SERVER", metavar="URL", help="The server's address."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the server's JSON, nothing else.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, like job_01k...")]


def make_console(*, to_stderr: bool = False) -> Console:
    """Return a console; away from a terminal it writes plain lines and wraps nothing."""
    # Asked of the stream itself: CI systems set FORCE_COLOR, which rich takes for a terminal.
    on_terminal = (sys.stderr if to_stderr else sys.stdout).isatty()
    return Console(
        stderr=to_stderr,
        force_terminal=on_terminal,
        width=None if on_terminal else _WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )


def is_live(console: Console) -> bool:
    """Return whether lines already written can be drawn anew."""
    return console.is_terminal and not console.is_dumb_terminal


def write_json(text: str) -> None:
    """Write the server's JSON to stdout exactly as it came."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()


def refuse(message: str, *, option: str | None = None) -> NoReturn:
    """End with exit code 2 and `message`."""
    raise typer.BadParameter(message, param_hint=option)


def parse_labels(written: Iterable[str]) -> dict[str, str]:
    """Return labels of `KEY=VALUE` words, or end with exit code 2."""
    labels = {}
    for word in written:
        key, equals, value = word.partition("=")
        if not (key and equals):
            refuse(f"{word!r} is no label: write KEY=VALUE", option="--label")
        labels[key] = value
    return labels


def read_object(name: str, *, option: str) -> dict[str, Any]:
    """Return the JSON object in the file `name`, or in stdin where it is `-`."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        found = json.loads(text, object_pairs_hook=unique_members)
    except OSError as error:
        refuse(f"{name} can't be read: {error.strerror}", option=option)
    except RepeatedMember as error:
        refuse(f"{name}: {error}", option=option)
    except ValueError as error:
        refuse(f"{name} holds no JSON: {error}", option=option)
    if not isinstance(found, dict):
        refuse(f"{name} holds no JSON object", option=option)
    return found
