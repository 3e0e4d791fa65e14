import pytest

from app.cli.sse import Event, EventParser

STREAM = (
    b"retry: 3000\n"
    b": heartbeat\n\n"
    b'id: 1\nevent: state\ndata: {"state": "queued"}\n\n'
    b'id: 2\r\nevent: progress\r\ndata: {"stage":\r\ndata: "load\xe2\x80\xa8"}\r\n\r\n'
    b'data:{"bare": true}\r\r'
    b"event: end\n\n"
    b"event: end\ndata: {}\n\n"
)
EVENTS = [
    Event("1", "state", {"state": "queued"}),
    Event("2", "progress", {"stage": "load\u2028"}),
    Event("2", "message", {"bare": True}),
    Event("2", "end", {}),
]


def test_whole_stream() -> None:
    assert list(EventParser().feed(STREAM)) == EVENTS


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_any_cut_gives_the_same_events(length: int) -> None:
    parser = EventParser()
    chunks = [STREAM[start : start + length] for start in range(0, len(STREAM), length)]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == EVENTS


def test_event_without_its_empty_line_is_not_there_yet() -> None:
    parser = EventParser()
    assert list(parser.feed(b"data: {}\n")) == []
    assert list(parser.feed(b"\n")) == [Event(None, "message", {})]


@pytest.mark.parametrize("data", [b"[1]", b"{", b"\xff"])
def test_data_must_be_a_json_object(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no JSON object|Expecting|decode"):
        list(EventParser().feed(b"data: " + data + b"\n\n"))
