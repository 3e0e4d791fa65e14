"""`assay compare`: two finished jobs side by side."""

from typing import Annotated

import typer

from app.cli.client import Client
from app.cli.options import DEFAULT_SERVER, JsonOption, ServerOption, make_console, write_json
from app.cli.render_checks import print_comparison


def compare(
    baseline: Annotated[
        str, typer.Argument(metavar="BASELINE", help="Id of the job to compare with.")
    ],
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="Id of the job in question.")
    ],
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Compare two finished jobs, window by window or document by document.

    Exit code 4 where they can't be compared: another text, or other parts of it.
    """
    with Client(server) as client:
        document = client.comparison(baseline, candidate)
    if as_json:
        write_json(document.text)
    else:
        print_comparison(make_console(), document.data)
