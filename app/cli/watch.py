"""`assay watch`: follow a job to its end."""

from typing import Any

import typer
from rich.console import Console

from app.cli.client import Client
from app.cli.options import (
    DEFAULT_SERVER,
    EXIT_INTERRUPTED,
    EXIT_JOB,
    EXIT_OK,
    JobArgument,
    JsonOption,
    ServerOption,
    make_console,
)
from app.cli.progress import make_view
from app.cli.render import print_end


def watch(
    job: JobArgument, server: ServerOption = DEFAULT_SERVER, as_json: JsonOption = False
) -> None:
    """Show a job's progress until it ends, then its result.

    Survives a restart of the server. Ctrl-C stops watching; the job goes on. With --json: one
    event a line.
    """
    with Client(server) as client:
        raise typer.Exit(watch_to_end(client, job, as_json=as_json))


def watch_to_end(client: Client, job_id: str, *, as_json: bool) -> int:
    """Follow the job, print how it ended, and return the exit code."""
    console = make_console()
    try:
        job = client.job(job_id).data
        if as_json or not job["is_terminal"]:
            job = follow(client, job_id, console, as_json=as_json)
    except KeyboardInterrupt:
        make_console(to_stderr=True).print(
            f"\nStopped watching; the job goes on. Watch it again: assay watch {job_id}. "
            f"End it: assay cancel {job_id}.",
            soft_wrap=True,
        )
        return EXIT_INTERRUPTED
    if not as_json:
        print_end(console, job)
    return exit_code(job)


def follow(client: Client, job_id: str, console: Console, *, as_json: bool) -> dict[str, Any]:
    """Show the job's events until its end and return the job."""
    with make_view(console, as_json=as_json) as view:
        for event in client.follow(job_id, on_away=view.away):
            view.show(event)
    return client.job(job_id).data


def exit_code(job: dict[str, Any]) -> int:
    """Return what the end of `job` means to a shell."""
    return EXIT_OK if job["state"] == "succeeded" else EXIT_JOB
