"""`assay logs`: what the processes of an attempt wrote."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from app.cli.client import Client, ClientError
from app.cli.options import (
    DEFAULT_SERVER,
    EXIT_INTERRUPTED,
    JobArgument,
    ServerOption,
    make_console,
    write_json,
)

_LOOK_EVERY_S = 0.5
_PATIENCE_S = 300.0


def logs(
    job: JobArgument,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt (the current one).")
    ] = None,
    node: Annotated[int, typer.Option(min=0, help="Rank of the node.")] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    server: ServerOption = DEFAULT_SERVER,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print objects with `attempt` and `text`, one a line.")
    ] = False,
) -> None:
    """Print the log of an attempt. With --follow, new output and later attempts too."""
    write = _write_json if as_json else _write_text
    with Client(server) as client:
        reader = _Reader(client, job, attempt, node, write)
        if not follow:
            reader.read_new()
            if not reader.attempt:
                make_console(to_stderr=True).print("No attempt was made yet: there is no log.")
            return
        try:
            _follow(reader)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


@dataclass
class _Reader:
    """Reads a log on from where it was."""

    client: Client
    job_id: str
    wanted: int | None
    """The attempt asked for; null for whatever is current."""
    node: int
    write: Callable[[int, str], None]
    attempt: int = 0
    offset: int = 0

    def read_new(self) -> bool:
        """Write what is new; return whether more can come."""
        # The state first: what was written before the end is then read after it was seen.
        job = self.client.job(self.job_id).data
        latest = self.wanted or job["attempt"]
        if not self.attempt:
            self.attempt = latest
        self._copy()
        while self.attempt < latest:
            self.attempt, self.offset = self.attempt + 1, 0
            self._copy()
        ended = [each["number"] for each in job["attempts"] if each["ended_at"] is not None]
        return not job["is_terminal"] and self.wanted not in ended

    def _copy(self) -> None:
        while self.attempt:
            part = self.client.log(
                self.job_id, attempt=self.attempt, node=self.node, offset=self.offset
            )
            self.offset = part.next_offset
            if not part.text:
                return
            self.write(self.attempt, part.text)


def _follow(reader: _Reader) -> None:
    """Read until the end, through restarts of the server."""
    deadline = time.monotonic() + _PATIENCE_S
    more = True
    while more:
        try:
            more = reader.read_new()
            deadline = time.monotonic() + _PATIENCE_S
        except ClientError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
        if more:
            time.sleep(_LOOK_EVERY_S)


def _write_text(_attempt: int, text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_json(attempt: int, text: str) -> None:
    write_json(json.dumps({"attempt": attempt, "text": text}))
