import pytest

from app.cli.numbers import (
    count,
    duration,
    parse_duration,
    percent,
    plain,
    rate,
    size,
    time_left,
    with_decimals,
    with_error,
)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (15.23456, 0.4123, "15.23 ± 0.41"),
        (15.23456, 0.04123, "15.235 ± 0.041"),
        (1523.456, 12.3, "1,523 ± 12"),
        (1523.456, 412.0, "1,523 ± 412"),
        (1.000012, 3.4e-7, "1.00001200 ± 0.00000034"),
        (15.23456, None, "15.2346"),
        (15.23456, 0.0, "15.2346"),
        (None, None, "too large for a float"),
    ],
)
def test_error_decides_the_digits(value: float | None, error: float | None, shown: str) -> None:
    assert with_error(value, error) == shown


def test_interval_has_the_digits_of_the_value() -> None:
    assert with_decimals(14.4321, 0.4123) == "14.43"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.00 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (65.4, "1 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7384, "2 h 03 min"),
        (None, "-"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (61_440, "61.4 kB"),
        (999_700, "1.0 MB"),
        (123_456_789, "123 MB"),
        (5_000_000_000_000_000, "5000 TB"),
        (None, "-"),
    ],
)
def test_size(num_bytes: int | None, shown: str) -> None:
    assert size(num_bytes) == shown


def test_time_left_and_percent() -> None:
    assert [time_left(seconds) for seconds in (0.0, 0.2, 59.5, 65)] == [
        "0 s",
        "1 s",
        "1 min 00 s",
        "1 min 05 s",
    ]
    assert [percent(fraction) for fraction in (0.0, 0.999, 1.0)] == ["0 %", "99 %", "100 %"]


def test_count_and_rate() -> None:
    assert count(12_345) == "12,345"
    assert rate(1234.5) == "1,234"
    assert rate(0.01234) == "0.0123"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86_400)]
)
def test_parse_duration(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1.5h", "-3", "2 h", "1w", "9" * 10])
def test_parse_duration_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


def test_plain_takes_control_characters_out() -> None:
    assert plain("a\x1b[31mb\x07\x9bc\nd") == "a [31mb  c\nd"
