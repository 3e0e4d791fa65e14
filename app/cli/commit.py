"""`--commit` and `--context` of `assay submit`: where a job is reported to."""

from typing import Annotated, Any

import typer
from pydantic import ValidationError

from app.cli.options import refuse
from app.statuses.target import DEFAULT_CONTEXT, CommitTarget

_PANEL = "Limits and words"

CommitOption = Annotated[
    str | None,
    typer.Option(
        "--commit",
        metavar="FORGE:REPO@SHA",
        help="Report the job to this commit, like github:owner/name@SHA or gitlab:group/name@SHA.",
        rich_help_panel=_PANEL,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help=f"With --commit: tells this status from others of the commit ({DEFAULT_CONTEXT}).",
        rich_help_panel=_PANEL,
    ),
]


def commit_target(written: str | None, context: str | None) -> dict[str, Any] | None:
    """Return the target of `FORGE:REPO@SHA`, or end with exit code 2; null where there is none."""
    if written is None:
        if context is not None:
            refuse("--context needs --commit")
        return None
    forge, _, rest = written.partition(":")
    repository, _, sha = rest.rpartition("@")
    fields = {"forge": forge, "repository": repository, "sha": sha}
    try:
        target = CommitTarget.model_validate(
            fields if context is None else fields | {"context": context}
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, wrong["loc"])) or "repository"
        refuse(
            f"{written!r}: {where}: {wrong['msg']}; write github:owner/name@SHA with the whole "
            "hash",
            option="--commit",
        )
    return target.model_dump(mode="json")
