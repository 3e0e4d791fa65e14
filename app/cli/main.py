"""`assay`: the command line.

It starts fast: what a command needs beyond typer, rich and httpx it imports itself.
"""

import sys
from typing import Annotated

import typer

from app.cli.client import ClientError
from app.cli.compare import compare
from app.cli.demo import demo
from app.cli.gate import gate, promote
from app.cli.jobs import cancel, list_jobs, nodes, retry, show
from app.cli.logs import logs
from app.cli.options import EXIT_SERVER, EXIT_USAGE, make_console
from app.cli.serve import serve
from app.cli.submit import submit
from app.cli.token import token
from app.cli.verify import verify
from app.cli.watch import watch

cli = typer.Typer(
    name="assay",
    help="Measure language models: ask a server for jobs, follow them, read their results.",
    epilog="Exit codes: 0 done, 1 the job did not succeed or does not verify, or a gate finds a "
    "regression, 2 wrong usage, 3 a gate can't tell, 4 the server refused or is out of reach, "
    "130 interrupted.",
    rich_markup_mode="markdown",  # lines of a paragraph are joined
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_USAGE_CODES = frozenset({"bad_address", "bad_token"})


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"assay {version('assay')}")
        raise typer.Exit


@cli.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


cli.command()(serve)
cli.command()(submit)
cli.command()(watch)
cli.command()(show)
cli.command()(nodes)
cli.command(name="list")(list_jobs)
cli.command()(cancel)
cli.command()(retry)
cli.command()(logs)
cli.command()(compare)
cli.command()(gate)
cli.command()(promote)
cli.command()(verify)
cli.command()(demo)
cli.add_typer(token, name="token")


def main() -> None:
    """Run a command. What goes wrong as expected is one sentence on stderr."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # a terminal without Unicode still gets the figures
    try:
        cli()
    except ClientError as error:
        make_console(to_stderr=True).print(f"Error: {error}", soft_wrap=True)
        raise SystemExit(EXIT_USAGE if error.code in _USAGE_CODES else EXIT_SERVER) from None
