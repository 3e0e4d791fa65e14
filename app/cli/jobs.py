"""`assay show`, `nodes`, `list`, `cancel` and `retry`."""

from typing import Annotated

import typer

from app.cli.client import Client
from app.cli.options import (
    DEFAULT_SERVER,
    EXIT_JOB,
    EXIT_OK,
    JobArgument,
    JsonOption,
    ServerOption,
    make_console,
    parse_labels,
    write_json,
)
from app.cli.render import print_job, print_list, state_text
from app.cli.render_nodes import print_nodes
from app.cli.watch import watch_to_end
from evaluator.contract.states import JobState


def show(
    job: JobArgument, server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False
) -> None:
    """Show a job: state, result, timings of each rank, attempts."""
    with Client(server) as client:
        document = client.job(job)
    if as_json:
        write_json(document.text)
    else:
        print_job(make_console(), document.data)


def nodes(
    job: JobArgument, server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False
) -> None:
    """Show how even the ranks of a job are, which is the slowest, and why."""
    with Client(server) as client:
        document = client.nodes(job)
    if as_json:
        write_json(document.text)
    else:
        print_nodes(make_console(), document.data)


def list_jobs(
    state: Annotated[
        list[JobState] | None, typer.Option("--state", help="Only this state; may be repeated.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="Only with this label; may be repeated."),
    ] = None,
    created_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only younger jobs: 2026-01-31T00:00:00Z.")
    ] = None,
    created_before: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only older jobs.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most jobs to show.")] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="Where the last page ended, as it printed.")
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    params = [("limit", str(limit))]
    params += [("state", each.value) for each in state or ()]
    params += [("label", f"{key}:{value}") for key, value in parse_labels(label or ()).items()]
    named = {"created_after": created_after, "created_before": created_before, "cursor": cursor}
    params += [(name, value) for name, value in named.items() if value is not None]
    with Client(server) as client:
        document = client.jobs(params)
    if as_json:
        write_json(document.text)
    else:
        print_list(make_console(), document.data)


def cancel(
    job: JobArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no process is left.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """End a job. With --wait: exit code 1 where it ended otherwise before."""
    with Client(server) as client:
        document = client.cancel(job)
        if wait and not document.data["is_terminal"]:
            for _ in client.follow(job):
                pass
            document = client.job(job)
    data = document.data
    if as_json:
        write_json(document.text)
    else:
        make_console().print(f"{job}", state_text(data["state"]))
    raise typer.Exit(EXIT_JOB if wait and data["state"] != JobState.CANCELLED else EXIT_OK)


def retry(
    job: JobArgument,
    wait: Annotated[bool, typer.Option("--wait", help="Then watch it.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Try a job again that failed, timed out, was lost or was cancelled.

    Batches that are done are not scored again.
    """
    with Client(server) as client:
        document = client.retry(job)
        if as_json:
            write_json(document.text)
        else:
            make_console().print(f"{job}", state_text(document.data["state"]))
        if wait:
            raise typer.Exit(watch_to_end(client, job, as_json=as_json))
