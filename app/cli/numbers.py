"""Numbers for people: units, and no more digits than the number deserves. Pure."""

import math
import re
import unicodedata

DASH = "-"
_UNITS_OF_TIME_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DEFAULT_DIGITS = 6


def decimals_for(error: float) -> int:
    """Return the decimals that show two digits of `error`, which is above 0."""
    return max(0, 1 - math.floor(math.log10(error)))


def with_decimals(value: float, error: float | None) -> str:
    """Return `value` with the decimals that its standard error justifies."""
    if error is None or error <= 0:
        return f"{value:.{_DEFAULT_DIGITS}g}"
    return f"{value:,.{decimals_for(error)}f}"


def with_error(value: float | None, error: float | None) -> str:
    """Return `value ± error`, for example `15.23 ± 0.41`."""
    if value is None:
        return "too large for a float"
    if error is None or error <= 0:
        return with_decimals(value, error)
    return f"{with_decimals(value, error)} ± {with_decimals(error, error)}"


def count(number: int | None) -> str:
    """Return a count with separators."""
    return DASH if number is None else f"{number:,}"


def count_of(number: int, noun: str) -> str:
    """Return a count of things, for example `1 rank` or `2,000 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def rate(per_second: float | None) -> str:
    """Return a rate without its unit, with about three digits."""
    if per_second is None:
        return DASH
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def duration(seconds: float | None) -> str:
    """Return a duration, for example `0.42 s`, `1 min 05 s` or `2 h 03 min`."""
    if seconds is None:
        return DASH
    if seconds < 59.95:  # what rounds to 60.0 is a minute
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def time_left(seconds: float) -> str:
    """Return an expected duration in whole seconds."""
    whole = math.ceil(seconds)
    return f"{whole} s" if whole < 60 else duration(whole)


def operations(per_second: float) -> str:
    """Return a rate of floating point operations, for example `82.1 GFLOP/s`."""
    value, unit = per_second / 1e6, "M"
    for unit in ("M", "G", "T", "P"):
        if value < 999.5 or unit == "P":
            break
        value /= 1000
    return f"{value:.3g} {unit}FLOP/s"


def percent(fraction: float) -> str:
    """Return a share in whole percent, rounded down: 100 % is what is really done."""
    return f"{math.floor(100 * fraction)} %"


def size(num_bytes: int | None) -> str:
    """Return a size in decimal units, for example `61.4 kB`."""
    if num_bytes is None:
        return DASH
    value, unit = float(num_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def parse_duration(text: str) -> int:
    """Return whole seconds of `90`, `90s`, `15m`, `2h` or `1d`.

    Raises:
        ValueError: it is written otherwise.
    """
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    if match is None:
        msg = f"{text!r} is no duration: write 90, 90s, 15m, 2h or 1d"
        raise ValueError(msg)
    return int(match[1]) * _UNITS_OF_TIME_S[match[2]]


def plain(text: object) -> str:
    """Return `text` without control characters, which could steer the terminal."""
    return "".join(
        character if character == "\n" or unicodedata.category(character) != "Cc" else " "
        for character in str(text)
    )
