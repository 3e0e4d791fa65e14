"""What is shown while a job runs, on a terminal and away from one."""

import json
import re
from typing import Any

import pytest

from app.cli.progress import BarView, JsonView, LinesView, View, describe_state, make_view
from app.cli.sse import Event
from tests.unit.test_cli_render import PROGRESS, make_console, text_of


def state(word: str, *, attempt: int = 1, message: str | None = None) -> Event:
    data = {
        "state": word,
        "state_reason": None if message is None else "rank_died",
        "message": message,
        "attempt": attempt,
        "is_terminal": word == "succeeded",
    }
    return Event("1", "state", data)


def progress(**changes: Any) -> Event:
    return Event("2", "progress", {**PROGRESS, "state": "running", **changes})


def show(view: View, *events: Event) -> None:
    with view:
        for event in events:
            view.show(event)


def test_lines_for_states_stages_and_tenths() -> None:
    console = make_console()
    steps = (0.0, 0.05, 0.1, 0.15, 0.19, 0.25, 0.999)
    show(
        LinesView(console),
        state("queued", attempt=0),
        state("running"),
        progress(stage="load", fraction=None, num_batches=None),
        *(progress(fraction=step) for step in steps),
        Event("9", "timing", {}),
        Event("9", "word of a newer server", {}),
        state("succeeded"),
        Event("9", "end", {}),
    )
    shown = [line.partition(", 9/21")[0] for line in text_of(console).splitlines()]
    assert shown == [
        "queued",
        "running, attempt 1",
        "load, 600 tokens/s, ETA 15 s",
        "score, 0 %",
        "score, 10 %",
        "score, 25 %",
        "score, 99 %",
        "succeeded, attempt 1",
    ]


def test_lines_say_once_that_the_server_is_away() -> None:
    console = make_console()
    view = LinesView(console)
    view.away("refused")
    view.away("refused again")
    view.show(state("running"))
    assert text_of(console).splitlines() == [
        "connection lost, trying again (refused)",
        "connected again",
        "running, attempt 1",
    ]


def test_bar_on_a_terminal() -> None:
    console = make_console(on_terminal=True)
    view = BarView(console)
    with view:
        view.show(state("running"))
        view.show(progress())
        view.away("refused")
        view.show(progress(fraction=0.5))
        view.show(state("queued", message="rank 1 died\x1b[2J"))
        view.show(state("succeeded", attempt=2))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text_of(console))
    assert "queued, attempt 1 (rank_died): rank 1 died [2J" in text
    assert "succeeded, attempt 2" in text
    assert "100 %" in text.splitlines()[-1]


def test_json_is_one_event_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = JsonView()
    view.away("refused")
    show(view, progress(stage="\u2028"), Event("3", "end", {}))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["progress", "end"]
    assert lines[0]["data"]["stage"] == "\u2028"
    assert lines[1] == {"id": "3", "event": "end", "data": {}}


def test_view_suits_where_the_output_goes() -> None:
    assert isinstance(make_view(make_console(), as_json=True), JsonView)
    assert isinstance(make_view(make_console(), as_json=False), LinesView)


def test_state_in_words() -> None:
    assert describe_state(state("timed_out", attempt=3).data) == "timed out, attempt 3"
