"""`assay token create`, `list` and `revoke`: for whoever runs the server, on its database."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import make_console, refuse

token = typer.Typer(
    help="Make, list and revoke the tokens that a server asks for, on its machine.",
    no_args_is_help=True,
)


def _set_state_dir(folder: Path | None) -> None:
    if folder is not None:
        os.environ["ASSAY_STATE_DIR"] = str(folder)


StateDirOption = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        callback=_set_state_dir,
        metavar="DIR",
        help="The server's state directory (.assay). The environment has its other settings.",
    ),
]
_COLUMNS = ("id", "name", "scopes", "project", "expires_at", "last_used_at", "revoked_at")


@token.command()
def create(
    name: Annotated[str, typer.Option(help="What it is for; `list` shows it.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE",
            help="jobs:read, jobs:write, hooks:write or admin; may be repeated (jobs:read and "
            "jobs:write).",
        ),
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(help="Whose jobs it sees (default); with admin: all, leave it out."),
    ] = None,
    days: Annotated[
        int | None, typer.Option(min=1, max=3650, help="Until it expires (never).")
    ] = None,
    first: Annotated[
        bool,
        typer.Option(
            "--first",
            help="Make the first one, for admin, and write it to DIR/admin-token, a file that only "
            "its owner can read.",
        ),
    ] = False,
    _state_dir: StateDirOption = None,
) -> None:
    """Make a token and print it, this once: only its hash is kept.

    As soon as there is one the server asks everybody for a token, also if it runs already.
    """
    from app.cli import token_work

    if first:
        if name or scope or project or days:
            refuse(
                "it takes no other options: it is for admin, and does not expire", option="--first"
            )
        sys.stdout.write(f"{token_work.create_first()}\n")
        return
    token_id, secret = token_work.create(
        name=name, scopes=scope or ["jobs:read", "jobs:write"], project=project, days=days
    )
    make_console(to_stderr=True).print(f"{token_id}, shown this once:")
    sys.stdout.write(f"{secret}\n")


@token.command(name="list")
def list_all(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, nothing else.")] = False,
    _state_dir: StateDirOption = None,
) -> None:
    """List all tokens, those that are revoked too; not the secrets, which nobody has."""
    from rich.table import Table

    from app.cli import token_work

    rows = token_work.list_all()
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    table = Table(*(name.removesuffix("_at") for name in _COLUMNS), box=None, pad_edge=False)
    for row in rows:
        shown = row | {"scopes": " ".join(row["scopes"]), "project": row["project"] or "all"}
        table.add_row(*(shown[column] or "never" for column in _COLUMNS))
    make_console().print(table)


@token.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `list` shows it: tok_01k...")],
    _state_dir: StateDirOption = None,
) -> None:
    """Let a token open nothing from now on; a stream that it has open goes on to its end.

    A server whose last token is revoked lets nobody in.
    """
    from app.cli import token_work

    token_work.revoke(token_id)
    make_console().print(f"{token_id} is revoked")
