"""What is shown while a job runs: a live bar, plain lines, or events in JSON."""

import json
import time
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from app.cli.numbers import percent, plain
from app.cli.options import is_live, write_json
from app.cli.render import describe_progress, speed_and_time_left
from app.cli.sse import Event

_STATES = frozenset({"state", "reset"})
"""Events that tell the state; `reset` after the server did not know where the stream was."""
_LINE_EVERY_S = 10.0
_LINE_EVERY_FRACTION = 0.1


class View(Protocol):
    """Shows events as they arrive."""

    def __enter__(self) -> Self:
        """Begin to draw."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Leave the terminal as it was."""

    def show(self, event: Event) -> None:
        """Show an event."""

    def away(self, reason: str) -> None:
        """Show that the server is away."""


class JsonView:
    """One event a line."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Write the event as a JSON object."""
        line = {"id": event.id, "event": event.type, "data": event.data}
        write_json(json.dumps(line))  # in ASCII: nothing in it can pass for the end of a line

    def away(self, reason: str) -> None:
        """Write nothing: only events go to stdout."""


class LinesView:
    """A line where something changed, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._fraction = 0.0
        self._at_s = 0.0
        self._is_away = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Write a line for a new state or stage, and some for progress."""
        if self._is_away:
            self._write("connected again")
            self._is_away = False
        if event.type in _STATES:
            self._write(describe_state(event.data))
        elif event.type == "progress":
            self._progress(event.data)

    def away(self, reason: str) -> None:
        """Write that the server is away, once."""
        if not self._is_away:
            self._write(f"connection lost, trying again ({reason})")
            self._is_away = True

    def _progress(self, progress: dict[str, Any]) -> None:
        stage, fraction = str(progress["stage"]), progress["fraction"] or 0.0
        stale = time.monotonic() - self._at_s > _LINE_EVERY_S
        moved = fraction - self._fraction >= _LINE_EVERY_FRACTION
        if stage == self._stage and not stale and not moved:
            return
        self._stage, self._fraction = stage, fraction
        self._at_s = time.monotonic()
        self._write(describe_progress(progress))

    def _write(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)


class BarView:
    """A bar that is drawn anew."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[facts]}", markup=False),
            console=console,
        )
        self._task: TaskID = self._progress.add_task("waiting", total=None, facts="")
        self._attempt = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Move the bar; write a line above it where the state needs words."""
        if event.type in _STATES:
            self._state(event.data)
        elif event.type == "progress":
            self._move(event.data)

    def away(self, reason: str) -> None:
        """Say it in the bar."""
        self._progress.update(self._task, description="connection lost, trying again")

    def _state(self, data: dict[str, Any]) -> None:
        if data["message"] or data["attempt"] > max(self._attempt, 1):
            self._progress.console.print(Text(describe_state(data)), soft_wrap=True)
        self._attempt = data["attempt"]
        self._progress.update(self._task, description=plain(data["state"]).replace("_", " "))
        if data["state"] == "succeeded":
            self._progress.update(self._task, total=1.0, completed=1.0, facts="100 %")
        elif data["state"] in {"queued", "starting"}:
            self._progress.update(self._task, total=None, facts="")

    def _move(self, progress: dict[str, Any]) -> None:
        fraction = progress["fraction"]
        facts = [] if fraction is None else [f"{percent(fraction):>5}"]
        self._progress.update(
            self._task,
            description=plain(progress["stage"] or progress["state"]).replace("_", " "),
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            facts="  ".join((*facts, *speed_and_time_left(progress))),
        )


def describe_state(data: dict[str, Any]) -> str:
    """Return state, attempt, reason and message of a state event in one line."""
    text = plain(data["state"]).replace("_", " ")
    if data["attempt"]:
        text += f", attempt {data['attempt']}"
    if data["state_reason"]:
        text += f" ({plain(data['state_reason'])})"
    return f"{text}: {plain(data['message'])}" if data["message"] else text


def make_view(console: Console, *, as_json: bool) -> View:
    """Return the view that suits where the output goes."""
    if as_json:
        return JsonView()
    return BarView(console) if is_live(console) else LinesView(console)
