"""Timeline of a run: load, backlog, latency, parallelism, hosts and cost, with every decision marked."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.action import Effect, Outcome
from elastream.core.decision import EXPECTED_IN, EXPECTED_RATE, Decision
from elastream.core.frames import Floats
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.wording import clock, quantities
from elastream.recording.recorder import Recording
from elastream.recording.series import Columns
from elastream.report.plots import COLOURS, Curve, Plot
from elastream.report.rings import ring_plot, rings_over_time

STATE_CURVES = {
    "in heaps": Metric.STATE_HEAP,
    "outside": Metric.STATE_OFF_HEAP,
    "on executors' disks": Metric.STATE_DISK,
    "in the checkpoint": Metric.STATE_SIZE,
}
OUTSIDE_CURVES = {
    "Python workers": Metric.PYTHON_MEMORY,
    "JVM outside its heap": Metric.OFF_HEAP,
    "copies of state": Metric.COPIES_MEMORY,
}
# Figure of hosts and the metric that limits it; None for a share.
LIMITED = {
    "heap": (Metric.HEAP, Metric.HEAP_LIMIT),
    "memory": (Metric.MEMORY, Metric.MEMORY_LIMIT),
    "garbage collection": (Metric.GC_TIME, None),
}
# Most marks in a lane; of more, every n-th is shown.
MARKS = 250
# Most letters of a mark's text.
TEXT = 400
# Most host decisions drawn as lines through all plots; more would hide the curves.
MARKED_LINES = 80


@dataclass(frozen=True, slots=True)
class Mark:
    time: float  # seconds
    round: int  # of planning; 0 for none
    lane: str
    symbol: str
    colour: int
    text: str  # under the pointer

    @property
    def short_text(self) -> str:
        return self.text if len(self.text) <= TEXT else self.text[: TEXT - 1] + "…"


@dataclass(frozen=True, slots=True)
class Lane:
    """Marks of one kind; of more than `MARKS`, one in `every`."""

    name: str
    legend: str
    marks: tuple[Mark, ...]
    every: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Plots over one time axis, below the lanes of decisions. `begin` and `end` are those of the axis (seconds)."""

    lanes: tuple[Lane, ...]
    plots: tuple[Plot, ...]
    end: float
    begin: float = 0.0

    def percent(self, time: float) -> float:
        return 100 * (time - self.begin) / max(self.end - self.begin, 1e-9)


def timeline(recording: Recording, begin: float = 0.0, ahead: float = 0.0) -> Timeline:
    """Return the timeline of a run; curves of which nothing is known are left out.

    Args:
        begin: Begin of the part that is shown (seconds). State on hosts is shown of whole runs only.
        ahead: Seconds beyond the end, for what is expected.
    """
    end = float(max([recording.end, *recording.times[-1:]], default=1.0) or 1.0) + ahead
    marks = [mark for mark in _marks(recording.decisions, recording.hosts) if mark.time >= begin]
    span = (begin, end)
    of_hosts = tuple((mark.time, mark.colour) for mark in marks if mark.lane == "hosts")
    lines = of_hosts if len(of_hosts) <= MARKED_LINES else ()
    plots = [
        replace(plot, marks=lines, span=span)
        for plot in (_cut_before(plot, begin) for plot in _panels(recording, end))
        if any(_any_known(line.y) for line in plot.lines)
    ]
    rings = () if begin or ahead else rings_over_time(recording)
    hosts = dict.fromkeys(host for bands in rings for each in bands.intervals for host in (each.host, *each.keepers))
    colours = {host: number % COLOURS for number, host in enumerate(hosts)}
    plots += [ring_plot(bands, colours, span) for bands in rings]
    return Timeline(tuple(_lanes(marks)), tuple(plots), end, begin)


def _cut_before(plot: Plot, begin: float) -> Plot:
    first = [int(np.searchsorted(line.x, begin)) for line in plot.lines]
    lines = (replace(line, x=line.x[at:], y=line.y[at:]) for line, at in zip(plot.lines, first, strict=True))
    return replace(plot, lines=tuple(lines))


def _lanes(marks: Sequence[Mark]) -> Iterator[Lane]:
    for name, legend in LANES.items():
        mine = [mark for mark in marks if mark.lane == name]
        if mine:
            every = math.ceil(len(mine) / MARKS)
            yield Lane(name, legend, tuple(mine[::every]), every)


def _panels(recording: Recording, end: float) -> Iterator[Plot]:
    times, of = recording.times, recording.application
    load = (
        Curve("offered", times, recording.whole(Metric.ARRIVAL_RATE), 1),
        Curve("processed", times, of(Metric.THROUGHPUT), 0),
        *_expected(recording, end),
    )
    yield _plot("Load, records/s", load)
    yield _plot("Backlog, records", (Curve("waiting", times, recording.whole(Metric.BACKLOG), 4, fill=True),))
    target = recording.header.target_latency
    latency = (Curve("p99", times, of(Metric.LATENCY_P99), 4), Curve("p50", times, of(Metric.LATENCY_P50), 0))
    yield _plot("Latency, s", latency, None if target is None else (f"target {target:g} s", target))
    stages = [
        Curve(str(stage["name"]), times, recording.parallelism(stage["name"]), number, steps=True)
        for number, stage in enumerate(recording.header.stages)
    ]
    yield _plot("Parallelism, instances by stage", tuple(line for line in stages if _any_known(line.y)))
    hosts = (
        Curve("leased", times, recording.leased, 1, steps=True, fill=True),
        Curve("ready", times, recording.host_count()[HostState.RUNNING], 2, steps=True, fill=True),
    )
    yield _plot("Hosts", hosts)
    yield _plot("Cost so far", (Curve("paid", times, recording.cost(), 3, steps=True),))
    yield _plot("Fullest executor, share of its limit", tuple(_fullness(recording)))
    yield _plot("Memory outside heaps, MB on all hosts", _sums(recording.series.hosts, OUTSIDE_CURVES, times))
    yield _plot("State, MB", _sums(recording.series.operators, STATE_CURVES, times))
    yield _plot("Watermark behind, s", (Curve("watermark", times, of(Metric.WATERMARK_LAG), 5),))
    behind = recording.series.behind
    copies = [
        Curve(name, times, behind.column(name, Metric.STANDBY_LAG.value, len(times)), number, steps=True)
        for number, name in enumerate(behind.rows)
    ]
    yield _plot("Copies of state behind, checkpoints", tuple(copies))


def _fullness(recording: Recording) -> Iterator[Curve]:
    hosts, times = recording.series.hosts, recording.times
    for number, (name, (used, limit)) in enumerate(LIMITED.items()):
        shares = [
            hosts.column(host, used, len(times)) / (1.0 if limit is None else hosts.column(host, limit, len(times)))
            for host in hosts.rows
        ]
        if shares and _any_known(highest := np.fmax.reduce(shares)):
            yield Curve(name, times, highest, number)


def _sums(columns: Columns, metrics: Mapping[str, Metric], times: Floats) -> tuple[Curve, ...]:
    """Return curves of the sums of known values."""
    curves = []
    for number, (name, metric) in enumerate(metrics.items()):
        values = np.array([columns.column(row, metric, len(times)) for row in columns.rows] or [times * np.nan])
        if (present := ~np.isnan(values)).any():
            curves.append(Curve(name, times, np.where(present.any(axis=0), np.nansum(values, axis=0), np.nan), number))
    return tuple(curves)


def _expected(recording: Recording, end: float) -> Iterator[Curve]:
    ahead = [
        (each.time + each.predicted[EXPECTED_IN], each.predicted[EXPECTED_RATE])
        for each in recording.decisions
        if {EXPECTED_IN, EXPECTED_RATE} <= each.predicted.keys()
    ]
    if ahead:
        times, rates = np.array(sorted(ahead)).T
        shown = times <= end
        yield Curve("planned for", times[shown], rates[shown], 2, dash="dot")


def _plot(title: str, lines: tuple[Curve, ...], level: tuple[str, float] | None = None) -> Plot:
    return Plot(title, "seconds", "", lines, level=level)


def _any_known(values: Sequence[float] | Floats) -> bool:
    return not np.isnan(values).all()


def _marks(decisions: Iterable[Decision], leases: Iterable[Lease]) -> list[Mark]:
    marks = [
        Mark(time, 0, *LOST, f"{lease.host} was lost at {clock(time)}")
        for lease in leases
        for time, state in lease.history
        if state is HostState.LOST
    ]
    for decision in decisions:
        kinds: dict[tuple[str, str, int], list[str]] = {}
        for outcome in decision.outcomes:
            style = STYLES[outcome.action.effect] if outcome.succeeded else REFUSED
            kinds.setdefault(style, []).append(_outcome_text(outcome))
        for proposal in decision.proposals:
            if proposal.refused:
                text = f"{proposal.action.describe()}: refused, {proposal.refused}"
                kinds.setdefault(REFUSED, []).append(text)
        for (lane, symbol, colour), texts in kinds.items():
            head = f"round {decision.round} at {clock(decision.time)}"
            observed = f"seen: {quantities(decision.seen)}" if decision.seen else ""
            text = "\n".join(filter(None, [head, *texts, observed]))
            marks.append(Mark(decision.time, decision.round, lane, symbol, colour, text))
    return sorted(marks, key=lambda mark: mark.time)


# Lane, symbol and colour.
STYLES = {
    Effect.HOST_ADDED: ("hosts", "▲", 2),
    Effect.HOST_REMOVED: ("hosts", "▼", 1),
    Effect.HOST_KEPT: ("hosts", "●", 6),
    Effect.TASKS_MOVED: ("tasks", "◆", 0),
    Effect.DATAFLOW_CHANGED: ("dataflow", "■", 3),
}
LOST = ("hosts", "✖", 4)
REFUSED = ("not done", "✕", 4)
# Lanes of decisions, from the top, with their legends.
LANES = {
    "hosts": "▲ leased  ▼ released  ✖ lost",
    "tasks": "◆ moved",
    "dataflow": "■ switched or scaled",
    "not done": "✕ not done",
}


def _outcome_text(outcome: Outcome) -> str:
    why = f" - {outcome.action.why}" if outcome.action.why else ""
    result = "" if outcome.succeeded else f": {outcome.status.value}, {outcome.reason}"
    return f"{outcome.action.describe()}{why}{result}"
