"""A line plot as SVG, both axes logarithmic; follows the reader's light or dark scheme."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 84, 150, 44, 56
STYLE = """
svg { font: 13px sans-serif; }
.paper { fill: #ffffff; } .ink { fill: #1f2328; } .axis { stroke: #1f2328; }
.grid { stroke: #d8dee4; } .bar { stroke: #6e7781; stroke-dasharray: 2 4; }
.s0 { stroke: #0072b2; fill: #0072b2; } .s1 { stroke: #b35900; fill: #b35900; }
.s2 { stroke: #8a3b80; fill: #8a3b80; }
.line { fill: none; stroke-width: 2; } .s1.line { stroke-dasharray: 7 3; }
.s2.line { stroke-dasharray: 2 3; } .label { stroke: none; }
@media (prefers-color-scheme: dark) {
  .paper { fill: #0d1117; } .ink { fill: #e6edf3; } .axis { stroke: #e6edf3; }
  .grid { stroke: #30363d; } .bar { stroke: #9198a1; }
  .s0 { stroke: #58a6ff; fill: #58a6ff; } .s1 { stroke: #f0a050; fill: #f0a050; }
  .s2 { stroke: #d29fd0; fill: #d29fd0; }
  .line { fill: none; } .label { stroke: none; }
}
"""


@dataclass(frozen=True)
class Series:
    """Points of one line, by growing x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What is shown. All values are above 0."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    bar: float | None = None
    """A level that is to be compared with."""
    bar_name: str = ""

    @property
    def x_ticks(self) -> list[float]:
        """Powers of two, every other one where there are many."""
        last = round(math.log2(max(x for each in self.series for x, _ in each.points)))
        return [2.0**n for n in range(0, last + 1, 2 if last > 6 else 1)]

    @property
    def y_ticks(self) -> list[float]:
        """Powers of ten around all values."""
        values = [y for each in self.series for _, y in each.points]
        values += [] if self.bar is None else [self.bar]
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return [10.0**n for n in range(first, max(last, first + 1) + 1)]

    def x(self, value: float) -> float:
        """Where it is on the paper."""
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    def y(self, value: float) -> float:
        """Where it is on the paper."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return (
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / low) / math.log(high / low)
        )

    def svg(self) -> str:
        """The file."""
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img">',
            f"<title>{escape(self.title)}</title><style>{STYLE}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
            _text(LEFT, 24, self.title, anchor="start", weight="bold"),
            *self._axes(),
            *(part for n, each in enumerate(self.series) for part in self._line(n, each)),
        ]
        return "\n".join([*parts, "</svg>"]) + "\n"

    def _axes(self) -> list[str]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = []
        for tick in self.y_ticks:
            y = self.y(tick)
            parts.append(_line("grid", LEFT, y, right, y))
            parts.append(_text(LEFT - 8, y + 4, _short(tick), anchor="end"))
        for tick in self.x_ticks:
            x = self.x(tick)
            parts.append(_line("grid", x, TOP, x, bottom))
            parts.append(_text(x, bottom + 18, _short(tick)))
        parts.append(_line("axis", LEFT, bottom, right, bottom))
        parts.append(_line("axis", LEFT, TOP, LEFT, bottom))
        parts.append(_text((LEFT + right) / 2, HEIGHT - 14, self.x_label))
        middle = (TOP + bottom) / 2
        parts.append(
            f'<g transform="rotate(-90 20 {middle:.1f})">{_text(20, middle, self.y_label)}</g>'
        )
        if self.bar is not None:
            parts.append(_line("bar", LEFT, self.y(self.bar), right, self.y(self.bar)))
            parts.append(_text((LEFT + right) / 2, self.y(self.bar) - 6, self.bar_name))
        return parts

    def _line(self, number: int, series: Series) -> list[str]:
        spots = [(self.x(x), self.y(y)) for x, y in series.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        x, y = spots[-1]
        return [
            f'<polyline class="s{number} line" points="{path}"/>',
            *(f'<circle class="s{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in spots),
            f'<text class="s{number} label" x="{x + 10:.1f}" y="{y + 4:.1f}">'
            f"{escape(series.name)}</text>",
        ]


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "middle", weight: str = "normal") -> str:
    return (
        f'<text class="ink" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _short(value: float) -> str:
    """A tick: 0.1, 10, 1 k, 10 M."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= unit:
            return f"{value / (1e3 if name == ' k' else unit):g}{name}"
    return f"{value:g}"
