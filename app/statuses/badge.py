"""A badge: a small picture of a job's state or figure, for pages. Pure."""

import hashlib
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from app.statuses.told import figure
from evaluator.contract.states import JobState

_LABEL: Final = "perplexity"
_HEIGHT, _PADDING = 20, 8
_CHAR_WIDTH = 7.0
_OTHER_WIDTHS: Final = dict.fromkeys("fijlrt.,' ", 4.2) | dict.fromkeys("mw±", 9.5)
"""Of 11 px Verdana, about; each text is fitted to its box."""
_GREY, _BLUE, _GREEN, _RED = "#555", "#0a66b7", "#256d1b", "#b5251b"
_COLOURS: Final = {
    JobState.SUCCEEDED: _GREEN,
    JobState.FAILED: _RED,
    JobState.TIMED_OUT: _RED,
    JobState.LOST: _RED,
    JobState.CANCELLED: "#5f5f5f",
}


@dataclass(frozen=True)
class Badge:
    """The picture as it is sent."""

    svg: bytes

    @property
    def etag(self) -> str:
        """Its strong entity tag."""
        return f'"{hashlib.sha256(self.svg).hexdigest()[:32]}"'


def badge_of(state: JobState, result: dict[str, Any] | None) -> Badge:
    """Return the badge of a job.

    Args:
        state: of the job.
        result: a contract `Result`, where the job has succeeded.
    """
    if state is JobState.SUCCEEDED and result is not None:
        value = figure(result["perplexity"])
    else:
        value = state.replace("_", " ")
    return draw(_LABEL, value, _COLOURS.get(state, _BLUE))


def draw(label: str, value: str, colour: str) -> Badge:
    """Return two boxes side by side, `label` on grey and `value` on `colour`."""
    left, right = _width(label), _width(value)
    title = escape(f"{label}: {value}")
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" '
        f'role="img" aria-label="{title}"><title>{title}</title>'
        f'<rect width="{left + right}" height="{_HEIGHT}" rx="3" fill="{colour}"/>'
        f'<path d="M3 0H{left}V20H3A3 3 0 0 1 0 17V3A3 3 0 0 1 3 0" fill="{_GREY}"/>'
        '<g fill="#fff" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle" text-rendering="geometricPrecision">'
        f"{_text(label, 0, left)}{_text(value, left, right)}</g></svg>"
    )
    return Badge(svg.encode())


def _width(text: str) -> int:
    return round(sum(_OTHER_WIDTHS.get(each, _CHAR_WIDTH) for each in text)) + 2 * _PADDING


def _text(text: str, x: int, width: int) -> str:
    length = width - 2 * _PADDING
    return f'<text x="{x + width / 2:g}" y="14" textLength="{length}">{escape(text)}</text>'
