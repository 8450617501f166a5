"""Timeline of a run: load, backlog, latency, parallelism, hosts and cost, with every decision marked.

The result is a Plotly figure as plain data, so that tests compare it with the recording value by value. The page's style
sheet sets text colours; line colours work on light and dark backgrounds.
"""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from elastream.core.action import Effect, Outcome
from elastream.core.decision import Decision
from elastream.core.frames import Floats
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.wording import clock, quantities
from elastream.recording.recorder import Recording
from elastream.report.drawing import PALETTE, Json, add_axis, add_title, axis_of, scatter, thinned, x_of
from elastream.report.rings import add_bands, rings_over_time

# Pixels: height of a panel, space between two, height of the decision strip, margins.
ROW, GAP, STRIP, TOP, BOTTOM = 118, 46, 54, 34, 44

# Most points of a curve: twice what a wide screen can show side by side.
POINTS = 3_000
# Most marks in a lane of the decision strip; of more, every n-th is shown.
MARKS = 1_000
# Most host decisions drawn as lines through all panels; more would hide the curves.
MARKED_LINES = 80


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve; `shape` and `fill` take Plotly's values."""

    name: str
    values: Floats
    colour: str
    shape: str = "linear"
    fill: str | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one y axis."""

    title: str
    lines: tuple[Curve, ...]
    level: tuple[str, float] | None = None
    options: Json = field(default_factory=dict)


def timeline(recording: Recording) -> Json:
    """Return the Plotly figure `{"data": [...], "layout": {...}}`; x is milliseconds after `ORIGIN`, unknown is null."""
    panels = [panel for panel in _panels(recording) if any(_any_known(line.values) for line in panel.lines)]
    rings = rings_over_time(recording)
    marks, shown = _marks(recording.decisions, recording.hosts), len(panels) + len(rings)
    height = TOP + BOTTOM + (STRIP + GAP) * bool(marks) + shown * ROW + (shown - 1) * GAP
    inner = height - TOP - BOTTOM
    end = max([recording.end, *recording.times[-1:]], default=1.0)
    data: list[Json] = []
    clock_format = "%-H:%M:%S" if end >= 3600 else "%-M:%S"
    layout: Json = {
        "height": height, "margin": {"l": 56, "r": 16, "t": TOP, "b": BOTTOM},
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "font": {"family": "inherit", "size": 12},
        "showlegend": False, "hovermode": "x unified", "hoversubplots": "axis",
        "hoverlabel": {"align": "left", "font": {"size": 12}}, "annotations": [], "shapes": [],
        "xaxis": {
            "type": "date", "range": [x_of(0.0), x_of(end)], "tickformat": clock_format,
            "hoverformat": f"{clock_format} after the start", "showgrid": True, "zeroline": False, "ticks": "outside",
            "tickcolor": "rgba(0,0,0,0)", "title": {"text": "time since the start", "standoff": 8},
        },
    }  # fmt: skip
    top = float(inner)
    if marks:
        _add_strip(data, layout, marks, 1, (top - STRIP) / inner, 1.0)
        top -= STRIP + GAP
    for number, panel in enumerate(panels, start=1 + bool(marks)):
        _add_panel(data, layout, panel, recording.times, number, (top - ROW) / inner, top / inner, end)
        top -= ROW + GAP
    hosts = dict.fromkeys(host for bands in rings for each in bands.intervals for host in (each.host, *each.keepers))
    colours = {host: PALETTE[number % len(PALETTE)] for number, host in enumerate(hosts)}
    for number, bands in enumerate(rings, start=1 + bool(marks) + len(panels)):
        add_bands(data, layout, bands, colours, number, (top - ROW) / inner, top / inner)
        top -= ROW + GAP
    layout["xaxis"]["anchor"] = axis_of(shown + bool(marks))
    return {"data": data, "layout": layout}


def _panels(recording: Recording) -> Iterable[Panel]:
    blue, orange, green, _, red, *_ = PALETTE
    offered = recording.whole(Metric.ARRIVAL_RATE)
    processed = recording.application(Metric.THROUGHPUT)
    load = (Curve("offered", offered, orange, unit="/s"), Curve("processed", processed, blue, unit="/s"))
    yield Panel("Load, records/s", load)
    yield Panel("Backlog, records", (Curve("waiting", recording.whole(Metric.BACKLOG), red, fill="tozeroy"),))
    target = recording.header.target_latency
    latency = (
        Curve("p99", recording.application(Metric.LATENCY_P99), red, unit=" s"),
        Curve("p50", recording.application(Metric.LATENCY_P50), blue, unit=" s"),
    )
    yield Panel("Latency, s", latency, None if target is None else ("target", target))
    stages = [
        Curve(str(stage["name"]), recording.parallelism(stage["name"]), PALETTE[number % len(PALETTE)], "hv")
        for number, stage in enumerate(recording.header.stages)
    ]
    yield Panel("Parallelism, instances by stage", tuple(line for line in stages if _any_known(line.values)))
    counts = recording.host_count()
    leased = sum(counts.values(), start=0 * recording.times)
    hosts = (
        Curve("ready", counts[HostState.RUNNING], green, "hv", fill="tozeroy"),
        Curve("leased", leased, orange, "hv", fill="tonexty"),
    )
    yield Panel("Hosts", hosts, options={"dtick": 1} if max(leased, default=0) <= 6 else {})
    yield Panel("Cost so far", (Curve("paid", recording.cost(), PALETTE[3], "hv"),))
    behind = recording.series.behind
    copies = [
        Curve(
            name, behind.column(name, Metric.STANDBY_LAG.value, len(recording.times)), PALETTE[number % len(PALETTE)], "hv"
        )
        for number, name in enumerate(behind.rows)
    ]
    yield Panel("Copies of state behind, checkpoints", tuple(copies))


def _any_known(values: Floats) -> bool:
    return not np.isnan(values).all()


def _add_panel(
    data: list[Json], layout: Json, panel: Panel, times: Floats, number: int, low: float, high: float, end: float
) -> None:
    axis = axis_of(number)
    for line in panel.lines:
        at, values = thinned(times, line.values, POINTS)
        y = [None if math.isnan(value) else float(f"{value:.6g}") for value in values.tolist()]
        fill = {"fill": line.fill, "fillcolor": line.colour + "26"} if line.fill else {}
        style = {"color": line.colour, "width": 1.6, "shape": line.shape, "dash": "solid"}
        hover = f"%{{y:,.4~g}}{line.unit}"
        x = [x_of(time) for time in at.tolist()]
        data.append(scatter(axis, line.name, x, y, mode="lines", line=style, hovertemplate=hover, **fill))
    large = any((line.values >= 10_000).any() for line in panel.lines)
    options = {"rangemode": "tozero", "nticks": 5, "tickformat": "~s" if large else "", **panel.options}
    add_axis(layout, axis, low, high, **options)
    named = [f"<span style='color:{line.colour}'>{html.escape(line.name)}</span>" for line in panel.lines]
    if panel.level is not None:
        label, value = panel.level
        named.append(f"<span style='color:#8a8f98'>{label} {value:g} s</span>")
        level = {"type": "line", "xref": "x", "x0": x_of(0.0), "x1": x_of(end), "yref": axis, "y0": value, "y1": value}
        layout["shapes"].append({**level, "line": {"color": "#8a8f98", "width": 1.2, "dash": "dash"}})
    add_title(layout, panel.title, named, high)


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark of a decision or a lost host."""

    time: float  # seconds
    round: int  # of planning; 0 for none
    lane: str  # of the strip
    symbol: str
    colour: str
    text: str  # shown on hover


def _marks(decisions: Iterable[Decision], leases: Iterable[Lease]) -> list[Mark]:
    """Return one mark per decision and kind of action done, failed or refused, and one per lost host."""
    marks = [
        Mark(time, 0, *LOST, f"<b>{html.escape(lease.host)} was lost at {clock(time)}</b>")
        for lease in leases
        for time, state in lease.history
        if state is HostState.LOST
    ]
    for decision in decisions:
        kinds: dict[tuple[str, str, str], list[str]] = {}
        for outcome in decision.outcomes:
            style = STYLES[outcome.action.effect] if outcome.succeeded else REFUSED
            kinds.setdefault(style, []).append(_outcome_text(outcome))
        for proposal in decision.proposals:
            if proposal.refused:
                text = f"{proposal.action.describe()}: refused, {proposal.refused}"
                kinds.setdefault(REFUSED, []).append(text)
        for (lane, symbol, colour), texts in kinds.items():
            head = f"<b>round {decision.round} at {clock(decision.time)}</b>"
            observed = f"<i>seen: {html.escape(quantities(decision.seen))}</i>" if decision.seen else ""
            text = "<br>".join(filter(None, [head, *(html.escape(each) for each in texts), observed]))
            marks.append(Mark(decision.time, decision.round, lane, symbol, colour, text))
    return sorted(marks, key=lambda mark: mark.time)


LEASED = ("hosts", "triangle-up", PALETTE[2])
GIVEN_BACK = ("hosts", "triangle-down", PALETTE[1])
KEPT = ("hosts", "circle", PALETTE[6])
LOST = ("hosts", "x", PALETTE[4])
PLACED = ("tasks", "diamond", PALETTE[0])
SWITCHED = ("dataflow", "square", PALETTE[3])
REFUSED = ("not done", "x-thin-open", PALETTE[4])
# Lanes of the decision strip, from the top, with their legends.
LANES = {
    "hosts": "▲ leased  ▼ given back  ✖ lost",
    "tasks": "◆ moved",
    "dataflow": "■ switched or scaled",
    "not done": "✕ not done",
}


STYLES = {
    Effect.HOST_ADDED: LEASED,
    Effect.HOST_REMOVED: GIVEN_BACK,
    Effect.HOST_KEPT: KEPT,
    Effect.TASKS_MOVED: PLACED,
    Effect.DATAFLOW_CHANGED: SWITCHED,
}


def _outcome_text(outcome: Outcome) -> str:
    why = f" - {outcome.action.why}" if outcome.action.why else ""
    result = "" if outcome.succeeded else f": {outcome.status.value}, {outcome.reason}"
    return f"{outcome.action.describe()}{why}{result}"


def _add_strip(data: list[Json], layout: Json, marks: Sequence[Mark], number: int, low: float, high: float) -> None:
    axis = axis_of(number)
    lanes = [lane for lane in LANES if any(mark.lane == lane for mark in marks)]
    every = 1
    for lane in lanes:
        here = [mark for mark in marks if mark.lane == lane]
        every = max(every, each := math.ceil(len(here) / MARKS))
        here = here[::each]
        colours = [mark.colour for mark in here]
        symbols = {"symbol": [mark.symbol for mark in here], "color": colours, "size": 9}
        hover = {"text": [mark.text for mark in here], "hovertemplate": "%{text}<extra></extra>"}
        x, y, rounds = [x_of(mark.time) for mark in here], [lane] * len(here), [mark.round for mark in here]
        marker = {**symbols, "line": {"width": 1.6, "color": colours}}
        data.append(scatter(axis, lane, x, y, mode="markers", customdata=rounds, marker=marker, **hover))
    order = {"type": "category", "categoryorder": "array", "categoryarray": lanes[::-1]}
    add_axis(layout, axis, low, high, range=[-0.6, len(lanes) - 0.4], **order)
    legend = "  ".join(LANES[lane] for lane in lanes) + (f"  (some: one in {every})" if every > 1 else "")
    add_title(layout, "Decisions", [f"<span style='color:#8a8f98'>{legend}</span>"], high)
    hosts = [mark for mark in marks if mark.lane == "hosts"]
    for mark in hosts if len(hosts) <= MARKED_LINES else ():
        time = x_of(mark.time)
        line = {"type": "line", "xref": "x", "x0": time, "x1": time, "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
        layout["shapes"].append({**line, "line": {"color": mark.colour, "width": 1, "dash": "dot"}, "opacity": 0.55})
