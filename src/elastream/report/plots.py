"""Plots of a page, as inline SVG without scripts.

Colours are the style sheet's `k0` to `k7`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats
from elastream.core.wording import amount, clock

COLOURS = 8
# Units of the drawing, of which one is at most a pixel of a wide screen.
WIDTH, HEIGHT = 1400, 240
# Most points of a curve: lowest and highest of each of half as many sections.
POINTS = 1_000
# Columns of a plot that show their figures under the pointer.
COLUMNS = 90
# Seconds of a horizontal axis's unit, if it is a time.
TIME_UNITS = {"s": 1.0, "seconds": 1.0, "minutes": 60.0}
MINUTE, HOUR, DAY = 60, 3600, 86400
# Distances between marks of a time axis; longer ones are whole days.
TIME_STEPS = (1, 2, 5, 10, 15, 30, *(MINUTE * n for n in (1, 2, 5, 10, 15, 30)), *(HOUR * n for n in (1, 2, 3, 6, 12)), DAY)
MAX_TICKS = 8

Values: TypeAlias = Sequence[float] | Floats
Tick: TypeAlias = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Curve:
    """Values at points of the horizontal axis.

    Attributes:
        x: Ascending.
        y: Unknown ones, NaN, are gaps.
        steps: Hold each value until the next point.
        dash: "solid", "dash" or "dot".
    """

    name: str
    x: Values
    y: Values
    colour: int = 0
    axis: int = 1
    steps: bool = False
    dash: str = "solid"
    fill: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """Rectangle with a text under the pointer; `strong` ones are opaque."""

    x: tuple[float, float]
    y: tuple[float, float]
    colour: int
    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Curves over one horizontal axis.

    Attributes:
        x: Unit of the axis. A time in seconds or minutes is shown as a clock does.
        y, y2: Units of the left and right axis.
        level: Name and height of a dashed line.
        begins: As `Pattern.begins`.
        span: Ends of the axis; those of the curves if None.
    """

    caption: str
    x: str
    y: str
    lines: tuple[Curve, ...]
    y2: str = ""
    level: tuple[str, float] | None = None
    marks: tuple[tuple[float, int], ...] = ()
    bands: tuple[Band, ...] = ()
    begins: float | None = None
    span: tuple[float, float] | None = None
    top: float | None = None
    note: str = ""

    def ends(self) -> tuple[float, float]:
        ends = [float(curve.x[at]) for curve in self.lines if len(curve.x) for at in (0, -1)]
        low, high = self.span or (min(ends, default=0.0), max(ends, default=1.0))
        return low, max(high, low + 1e-9)

    def time_text(self, x: float) -> str:
        if self.x not in TIME_UNITS:
            return amount(x)
        seconds = x * TIME_UNITS[self.x]
        if self.begins is None:
            return clock(seconds)
        return f"{datetime.fromtimestamp(self.begins + seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def thinned(times: Floats, values: Floats, most: int) -> tuple[Floats, Floats]:
    """Return at most `most` points (>= 4) of a curve: the lowest and the highest of each section, in order.

    First and last point stay. An unknown section is one unknown point.
    """
    if len(values) <= most:
        return times, values
    last, count = len(values) - 1, (most - 2) // 2
    edges = 1 + np.arange(count + 1) * ((last - 1) // count) + np.minimum(np.arange(count + 1), (last - 1) % count)
    rows = edges[:-1, None] + np.arange((last - 1) // count + 1)
    here = np.where(rows < edges[1:, None], values[np.minimum(rows, last)], np.nan)
    unknown = np.isnan(here)
    lowest = np.where(unknown, np.inf, here).argmin(axis=1)
    highest = np.where(unknown, -np.inf, here).argmax(axis=1)
    chosen = np.unique(np.concatenate([[0], edges[:-1] + lowest, edges[:-1] + highest, [last]]))
    return times[chosen], values[chosen]


def plot_html(plot: Plot) -> str:
    low, high = plot.ends()
    axes = {axis: _axis_ticks(plot, axis) for axis in (1, 2) if axis == 1 or any(c.axis == 2 for c in plot.lines)}
    across = _time_ticks(low, high, plot) if plot.x in TIME_UNITS else _ticks(low, high, MAX_TICKS)
    across = [(x, text) for x, text in across if low <= x <= high]
    scale = _Scale(low, high)
    shapes = [f'<path class="grid" d="{"".join(f"M0 {scale.y(y, axes[1])}H{WIDTH}" for y, _ in axes[1])}"/>']
    shapes += [_band(band, scale, axes[1]) for band in plot.bands]
    shapes += [f'<path class="mark k{colour}" d="M{scale.x(x)} 0V{HEIGHT}"/>' for x, colour in plot.marks]
    shapes += [_curve(curve, scale, axes[curve.axis]) for curve in plot.lines]
    if plot.level is not None:
        shapes.append(f'<path class="level" d="M0 {scale.y(plot.level[1], axes[1])}H{WIDTH}"/>')
    sides = ""
    for axis, ticks in axes.items():
        labels = (_label("top", scale.y(y, ticks) / HEIGHT, text) for y, text in ticks)
        sides += f'<div class="y y{axis}">{"".join(labels)}</div>'
    below = "".join(_label("left", scale.x(x) / WIDTH, text) for x, text in across)
    return (
        f'<figure class="plot{" two" if 2 in axes else ""}"><figcaption>{_caption(plot)}</figcaption>'
        f'<div class="area"><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(plot.caption)}">{"".join(shapes)}</svg>{_readings(plot)}</div>{sides}'
        f'<div class="x">{below}</div><div class="unit">{escape(_unit(plot))}</div></figure>'
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float

    def x(self, x: float) -> int:
        return round(WIDTH * (x - self.low) / (self.high - self.low))

    def y(self, y: float, ticks: Sequence[Tick]) -> int:
        bottom, top = ticks[0][0], ticks[-1][0]
        return round(HEIGHT * (top - y) / (top - bottom))


def _axis_ticks(plot: Plot, axis: int) -> list[Tick]:
    values = [np.asarray(curve.y, dtype=float) for curve in plot.lines if curve.axis == axis]
    finite = [each[np.isfinite(each)] for each in values]
    ends = [end for each in finite if each.size for end in (float(each.min()), float(each.max()))]
    ends += [plot.level[1]] if plot.level is not None and axis == 1 else []
    top = plot.top if plot.top is not None and axis == 1 else max(ends, default=1.0)
    return _ticks(min(0.0, *ends, 0.0), top, 4)


def _ticks(low: float, high: float, most: int) -> list[Tick]:
    high = high if high > low else low + 1.0
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(each * size for each in (1, 2, 2.5, 5, 10) if each * size >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [(n * step, _number(n * step)) for n in range(first, last + 1)]


def _number(value: float) -> str:
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(factor, 1e4):
            return f"{value / factor:.4g}{suffix}"
    return f"{value:.4g}"


def _time_ticks(low: float, high: float, plot: Plot) -> list[Tick]:
    unit, zero = TIME_UNITS[plot.x], plot.begins or 0.0
    begin, end = low * unit + zero, high * unit + zero
    raw = (end - begin) / MAX_TICKS
    step = next((float(each) for each in TIME_STEPS if each >= raw), DAY * math.ceil(raw / DAY))
    seconds = [n * step for n in range(math.ceil(begin / step - 1e-9), math.floor(end / step + 1e-9) + 1)]
    dated = plot.begins is not None
    return [((each - zero) / unit, _tick_text(each, end, dated, first=n == 0)) for n, each in enumerate(seconds)]


def _tick_text(seconds: float, end: float, dated: bool, *, first: bool) -> str:
    if dated:
        moment = datetime.fromtimestamp(seconds, UTC)
        day = f"{moment:%-d %b} " if first or not seconds % DAY else ""
        return day + (f"{moment:%H:%M:%S}" if seconds % MINUTE else f"{moment:%H:%M}")
    return f"{int(seconds // HOUR)}:{int(seconds % HOUR // MINUTE):02d}" if end >= HOUR else clock(seconds)


def _unit(plot: Plot) -> str:
    if plot.x not in TIME_UNITS:
        return plot.x
    if plot.begins is not None:
        return "the load's clock, UTC"
    return "hours:minutes" if plot.ends()[1] * TIME_UNITS[plot.x] >= HOUR else "minutes:seconds"


def _label(side: str, share: float, text: str) -> str:
    return f'<span style="{side}:{100 * share:.2f}%">{escape(text)}</span>'


def _caption(plot: Plot) -> str:
    names = [
        f'<span class="key {_class(c)}">{escape(c.name)}{" (right)" if c.axis == 2 else ""}</span>' for c in plot.lines
    ]
    if plot.level is not None:
        names.append(f'<span class="key soft">{escape(plot.level[0])}</span>')
    if plot.note:
        names.append(f'<span class="soft">{escape(plot.note)}</span>')
    units = [f"{unit} ({side})" if plot.y2 else unit for unit, side in ((plot.y, "left"), (plot.y2, "right")) if unit]
    title = f"<b>{escape(plot.caption)}</b>" + (f' <span class="soft">{escape("; ".join(units))}</span>' if units else "")
    return f"<div>{title}</div><div>{' '.join(names)}</div>" if names else f"<div>{title}</div>"


def _class(curve: Curve) -> str:
    """Return the classes of a curve; of more curves than colours, the next ones are dashed."""
    dash = curve.dash if curve.colour < COLOURS or curve.dash != "solid" else "dash"
    return f"k{curve.colour % COLOURS}" + (f" {dash}" if dash != "solid" else "")


def _curve(curve: Curve, scale: _Scale, ticks: Sequence[Tick]) -> str:
    x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
    times, values = thinned(x, np.where(np.isfinite(y), y, np.nan), POINTS)
    base, paths, areas = scale.y(max(0.0, ticks[0][0]), ticks), [], []
    for part in _known_parts(times, values, scale, ticks):
        path = _path(part, curve.steps)
        paths.append(path)
        areas.append(f"{path}V{base}H{part[0][0]}Z")
    area = f'<path class="fill {_class(curve)}" d="{"".join(areas)}"/>' if curve.fill else ""
    return f'{area}<path class="line {_class(curve)}" d="{"".join(paths)}"/>'


Point: TypeAlias = tuple[int, int]


def _known_parts(times: Floats, values: Floats, scale: _Scale, ticks: Sequence[Tick]) -> Iterable[list[Point]]:
    part: list[Point] = []
    for time, value in zip(times.tolist(), values.tolist(), strict=True):
        if not math.isnan(value):
            part.append((scale.x(time), scale.y(value, ticks)))
        elif part:
            yield part
            part = []
    if part:
        yield part


def _path(points: Sequence[Point], steps: bool) -> str:
    (x, y), path, command = points[0], [f"M{points[0][0]} {points[0][1]}h0"], ""
    for to_x, to_y in points[1:]:
        if steps:
            path.append((f"h{to_x - x}" if to_x != x else "") + (f"v{to_y - y}" if to_y != y else ""))
        elif (to_x, to_y) != (x, y):
            path.append(f"{command or 'l'}{to_x - x} {to_y - y}")
            command = " "
        x, y = to_x, to_y
    return "".join(path).replace(" -", "-")


def _band(band: Band, scale: _Scale, ticks: Sequence[Tick]) -> str:
    left, right = map(scale.x, band.x)
    bottom, top = (scale.y(y, ticks) for y in band.y)
    strong = " strong" if band.strong else ""
    title = f"<title>{escape(band.text)}</title>" if band.text else ""
    size = f'x="{left}" y="{top}" width="{max(1, right - left)}" height="{bottom - top}"'
    return f'<rect class="band k{band.colour}{strong}" {size}>{title}</rect>'


def _readings(plot: Plot) -> str:
    curves = [(c.name, np.asarray(c.x, dtype=float), np.asarray(c.y, dtype=float), c.steps) for c in plot.lines if len(c.x)]
    if not curves:
        return ""
    low, high = plot.ends()
    columns = []
    for number in range(COLUMNS):
        x = low + (number + 0.5) * (high - low) / COLUMNS
        lines = [plot.time_text(x)]
        for name, times, values, steps in curves:
            value = float(values[_row(times, x, steps)])
            if not math.isnan(value):
                lines.append(f"{name} {amount(value)}")
        columns.append(f'<i data-t="{escape(chr(10).join(lines))}"></i>')
    return f'<div class="readings">{"".join(columns)}</div>'


def _row(times: Floats, x: float, steps: bool) -> int:
    after = int(np.searchsorted(times, x, side="right"))
    if steps or after == 0 or after == len(times):
        return max(0, after - 1)
    return after if times[after] - x < x - times[after - 1] else after - 1
