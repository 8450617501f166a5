"""The live view of a run: the alternate screen of a terminal, elsewhere a line every few seconds."""

import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from elastream.core.action import MoveTask
from elastream.core.decision import Decision
from elastream.core.latency import basis_text
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import (
    UNKNOWN,
    amount,
    clock,
    counted,
    duration_text,
    money,
    percent,
    quantity,
    rate_text,
)
from elastream.dataflow.operators import Operator
from elastream.policies.savings import FleetCost, Savings
from elastream.recording.observer import Ending, Header, Observer
from elastream.report.tally import InTime

LINE_INTERVAL_S = 10.0
# A remark that comes and goes is printed once until it was absent for so long.
REMARK_SILENCE_S = 60.0
SPARKLINE_SAMPLES = 600
MAX_MOVES = 2
MAX_ALARMS = 3
MAX_DECISIONS = 6
MAX_RINGS = 2
# Lines other than figures, operators and decisions: title, latency, table heading, three blanks.
OTHER_LINES = 6
BARS = "▁▂▃▄▅▆▇█"


class RunView(Observer, Protocol):
    """An observer that prints to the terminal and restores it."""

    def awaited(self, flow: str, text: str) -> None:
        """Show what is being started. Called again and again while it takes time."""

    def close(self) -> None:
        """Restore the terminal. May be called twice, and before the run has started."""


def view_for(console: Console, length: float | None = None) -> RunView:
    return LiveView(console, length) if console.is_terminal and not console.is_dumb_terminal else PlainView(console)


class StartProgress:
    """Shows what a run is starting."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._bar: Progress | None = None
        self._text, self._since, self._next = "", 0.0, 0.0

    def show(self, flow: str, text: str) -> None:
        """Show `text`; elsewhere than on a terminal when it changes, and every ten seconds."""
        now = self._clock()
        if text != self._text:
            self._text, self._since, self._next = text, now, now
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._show_clock(f"{flow}: {text}")
        elif now >= self._next:
            self._next = now + LINE_INTERVAL_S
            took = f" ({now - self._since:.0f} s)" if now > self._since else ""
            self._console.print(f"{flow}: {text}{took}", markup=False, highlight=False, soft_wrap=True)

    def _show_clock(self, line: str) -> None:
        if self._bar is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._bar = Progress(
                *columns, console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._bar.add_task(line, total=None)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=line)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class RunningFigures:
    """Figures of the run so far, counted as in the summary of the finished run."""

    def __init__(self, target_latency: float | None = None, began: float = 0.0) -> None:
        self._in_time = InTime(target_latency)
        self._savings = Savings(target_latency, began)
        self._time = began
        self.fleets: tuple[FleetCost, ...] = ()

    def observed(self, observation: Observation) -> None:
        """Count an observation. Afterwards `fleets` has the known costs of other fleets."""
        width, self._time = observation.time - self._time, observation.time
        self._in_time.batches(observation.batches)
        records = observation.overall(Metric.THROUGHPUT) * width
        p99, compliance = observation.overall(Metric.LATENCY_P99), observation.overall(Metric.COMPLIANCE)
        self._in_time.period(width, p99, compliance, records)
        self._savings.observed(observation)
        fleets = self._savings.fleets(tuple(observation.context.host_types.values()), observation.time)
        self.fleets = tuple(each for each in fleets if not math.isnan(each.cost))

    @property
    def in_time(self) -> str:
        """Shares of the records and of the time that were within the service level."""
        return str(self._in_time)

    @property
    def share(self) -> str:
        """Share of the records in time, or of the time if that is unknown."""
        records = percent(self._in_time.records)
        return percent(self._in_time.time) if records == UNKNOWN else records


class Screen:
    """A run on one screen: figures, operators and latest decisions.

    Args:
        length: Duration of the run (seconds), if it ends.
    """

    def __init__(self, console: Console, length: float | None = None) -> None:
        self._console, self._start = console, StartProgress(console)
        self._length = length
        self._header = Header("", "")
        self._observation: Observation | None = None
        self._figures_so_far = RunningFigures()
        self._began: float | None = None
        self._load: deque[float] = deque(maxlen=SPARKLINE_SAMPLES)
        self._hosts: deque[float] = deque(maxlen=SPARKLINE_SAMPLES)
        self._decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)

    def awaited(self, flow: str, text: str) -> None:
        self._start.show(flow, text)

    def started(self, header: Header) -> None:
        self._start.close()
        self._header = header
        self._figures_so_far = RunningFigures(header.target_latency, header.began)

    def observed(self, observation: Observation) -> None:
        self._observation = observation
        if self._began is None:  # seconds that the first host took to start, before the load began
            self._began = 0.0 if self._header.plant == "simulated" else observation.time
        self._figures_so_far.observed(observation)
        self._load.append(whole(observation, Metric.ARRIVAL_RATE))
        self._hosts.append(float(len(observation.leases)))
        self._paint()

    def decided(self, decision: Decision) -> None:
        remember(self._decisions, decision)
        self._paint()

    def ended(self, ending: Ending) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal. May be called twice."""

    def _paint(self) -> None:
        """Repaint the screen."""

    def screen(self) -> RenderableType:
        width, height = self._console.size
        observation = self._observation
        head = self._head(observation)
        if observation is None:
            return Group(head, Text("waiting for the first observation", style="dim"))
        figures = self._figures(observation, width)
        alarms = [*_alarms(observation), *_closed(observation)]
        state = rings_of(observation)
        # Remaining lines go to operators first (except one for a decision), then to decisions.
        left = height - figures.row_count - OTHER_LINES - len(alarms) - len(state)
        operators = observation.context.graph.operators[: max(0, left - 1)]
        why = self._why(max(1, left - len(operators)))
        parts = (head, figures, self._latency(observation), self._operators(observation, operators, width), why)
        return Group(parts[0], *(alarms or [Text()]), *parts[1:3], *state, Text(), parts[3], Text(), parts[4])

    def _head(self, observation: Observation | None) -> Text:
        name = Text(self._header.flow, style="bold")
        if self._header.plant == "simulated":
            name.append(" simulated", style="italic yellow")
        elapsed = clock(observation.time) if observation else "0:00"
        if self._length is not None:
            elapsed += f" of {clock(self._length + (self._began or 0.0))}"
        resumed = "".join(f"   resumed {each}" for each in self._header.resumptions[-1:])
        about = (f"   {self._header.policy}   {elapsed}", "dim")
        return _line(name, about, (resumed, "yellow"))

    def _figures(self, observation: Observation, width: int) -> Table:
        curve = max(0, min(60, width - 44))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, min_width=18)
        table.add_column(no_wrap=True, style="cyan")
        table.add_row("rate in", rate_text(whole(observation, Metric.ARRIVAL_RATE)), sparkline(self._load, curve))
        table.add_row("processed", written(observation, Metric.THROUGHPUT), "")
        table.add_row("backlog", amount(np.round(whole(observation, Metric.BACKLOG))), "")
        hosts = f"{len(observation.leases)} leased, {len(observation.usable)} ready"
        table.add_row("hosts", hosts, Text(sparkline(self._hosts, curve), style="green"))
        if (left_out := observation.overall(Metric.LEFT_OUT)) > 0:
            table.add_row("left out", amount(left_out), Text("records that a function raised on", style="dim"))
        others = [str(each) for each in self._figures_so_far.fleets]
        for place, beside in enumerate(others or [""]):
            cost = "" if place else money(observation.cost)
            table.add_row("" if place else "cost so far", cost, Text(beside, style="dim"))
        if self._header.target_latency is not None:
            records, _, time = self._figures_so_far.in_time.partition(", ")
            table.add_row("in time", records, Text(time, style="dim"))
        return table

    def _latency(self, observation: Observation) -> Text:
        target, p99 = self._header.target_latency, observation.overall(Metric.LATENCY_P99)
        return _line(
            ("latency      ", "dim"),
            f"p50 {written(observation, Metric.LATENCY_P50)}   p99 ",
            (duration_text(p99), style_of(p99, target)),
            ("" if target is None else f"   target {duration_text(target)}", "dim"),
            (f"   {basis_text(observation.latency_basis)}" if observation.latency_basis else "", "dim"),
        )

    def _operators(self, observation: Observation, operators: Sequence[Operator], width: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        table.add_column("operator", no_wrap=True, overflow="ellipsis", max_width=max(8, width - 40))
        for column in ("in", "p50", "p99"):
            table.add_column(column, justify="right", no_wrap=True)
        wide = width >= 64
        for column in ("level", "instances") if wide else ():
            table.add_column(column, justify="right", no_wrap=True)
        for operator in operators:

            def of(metric: Metric, name: str = operator.name) -> str:
                return quantity(metric, observation.operators.value(name, metric))

            p99, level = observation.operators.value(operator.name, Metric.DURATION_P99), operator.max_duration
            more = (duration_text(level), of(Metric.PARALLELISM)) if wide else ()
            table.add_row(
                _running(observation, operator),
                of(Metric.ARRIVAL_RATE),
                of(Metric.DURATION_P50),
                Text(of(Metric.DURATION_P99), style=style_of(p99, level)),
                *more,
            )
        return table

    def _why(self, rows: int) -> RenderableType:
        if not self._decisions:
            return Text("nothing decided yet", style="dim")
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True, justify="right", min_width=5)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for decision in list(self._decisions)[-rows:][::-1]:
            table.add_row(clock(decision.time), _line(summary_of(decision)))
        return table


class LiveView(Screen):
    def __init__(self, console: Console, length: float | None = None) -> None:
        super().__init__(console, length)
        self._live: Live | None = None

    def started(self, header: Header) -> None:
        super().started(header)
        self._live = Live(self.screen(), console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live.start(refresh=True)

    def close(self) -> None:
        self._start.close()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _paint(self) -> None:
        if self._live is not None:
            self._live.update(self.screen(), refresh=True)


class PlainView:
    """Prints a line of figures every ten seconds, and a line for each decision that differs from the last."""

    def __init__(self, console: Console) -> None:
        self._console, self._start = console, StartProgress(console)
        self._next = 0.0
        self._round = 0
        self._last: Decision | None = None
        self._remarked: dict[Hashable, float] = {}
        self._standing: dict[str, str] = {}
        self._closed: dict[str, str] = {}
        self._target: float | None = None
        self._figures_so_far = RunningFigures()

    def awaited(self, flow: str, text: str) -> None:
        self._start.show(flow, text)

    def started(self, header: Header) -> None:
        self._start.close()
        self._target, self._figures_so_far = header.target_latency, RunningFigures(header.target_latency, header.began)
        plant = " (simulated)" if header.plant == "simulated" else ""
        self._print(f"{header.flow}{plant}: started with policy {header.policy}")
        for each in header.resumptions[-1:]:
            self._print(f"{header.flow}: resumed {each}")

    def observed(self, observation: Observation) -> None:
        self._figures_so_far.observed(observation)
        self._alarms(observation)
        if observation.time < self._next:
            return
        self._next = observation.time + LINE_INTERVAL_S
        figures = (
            f"rate in {rate_text(whole(observation, Metric.ARRIVAL_RATE))}",
            f"backlog {amount(np.round(whole(observation, Metric.BACKLOG)))}",
            f"p99 {written(observation, Metric.LATENCY_P99)}",
            *([f"in time {self._figures_so_far.share}"] if self._target is not None else []),
            f"hosts {len(observation.usable)} of {len(observation.leases)}",
            f"cost {money(observation.cost)}",
            *([f"left out {amount(n)}"] if (n := observation.overall(Metric.LEFT_OUT)) > 0 else []),
        )
        self._print(f"{clock(observation.time):>7}  {'  '.join(figures)}")

    def decided(self, decision: Decision) -> None:
        if decision.round == self._round or not worth_showing(decision):
            return
        self._round = decision.round
        self._remarked = {each: time for each, time in self._remarked.items() if decision.time - time < REMARK_SILENCE_S}
        repeated = not acted(decision) and self._remarked.keys() >= set(decision.repeats)
        if decision.outcomes or not (repeated or (self._last and alike(self._last, decision))):
            self._print(f"{clock(decision.time):>7}  {summary_of(decision)}")
        self._last = decision
        self._remarked |= dict.fromkeys(decision.repeats, decision.time)

    def ended(self, ending: Ending) -> None:
        reason = f": {ending.reason}" if ending.reason else ""
        self._print(f"{clock(ending.time):>7}  {ending.status}{reason}")

    def close(self) -> None:
        self._start.close()

    def _alarms(self, observation: Observation) -> None:
        now = {alarm.source: alarm.said for alarm in observation.alarms}
        for source, message in now.items():
            if self._standing.get(source) != message:
                self._print(f"{clock(observation.time):>7}  ALARM  {source}: {message}")
        for source in self._standing.keys() - now.keys():
            self._print(f"{clock(observation.time):>7}  alarm cleared  {source}")
        self._standing = now
        closed = {name: each.why for name, each in observation.standings.items() if not each.allowed}
        for element, why in closed.items():
            if self._closed.get(element) != why:
                self._print(f"{clock(observation.time):>7}  guards  {element}: {why}")
        self._closed = closed

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _alarms(observation: Observation) -> list[Text]:
    shown = observation.alarms if len(observation.alarms) <= MAX_ALARMS else observation.alarms[: MAX_ALARMS - 1]
    lines = [f"ALARM since {clock(alarm.since)}  {alarm.source}: {alarm.said}" for alarm in shown]
    if len(shown) < len(observation.alarms):
        lines.append(f"and {len(observation.alarms) - len(shown)} more alarms")
    return [_line((line, "bold red")) for line in lines]


def _closed(observation: Observation) -> list[Text]:
    reasons = [standing.why for standing in observation.standings.values() if not standing.allowed]
    if not reasons:
        return []
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return [_line((f"guards: {reasons[0]}{more}", "yellow"))]


def _running(observation: Observation, operator: Operator) -> Text:
    text, composition = Text(operator.name), observation.composition
    if len(operator.alternates) > 1:
        text.append(f" as {composition.alternate(operator).name}", style="cyan")
    choices = dict.fromkeys(
        edge.choice for edge in observation.context.graph.outputs[operator.name] if edge.choice is not None
    )
    for choice in choices:
        target = composition.running(choice)
        text.append(f" to {target or observation.context.graph.choices[choice][0]}", style="cyan")
    return text


def rings_of(observation: Observation) -> list[Text]:
    """Return lines about owners and standby copies of state, for at most `MAX_RINGS` operators."""
    names, rows = observation.tasks.operator, observation.operators.rows
    tasks = observation.tasks.tasks
    copied = {tasks[row].operator for row in set(observation.standby.task.tolist())}
    operators = [each for each in observation.context.partitions if each in observation.rings or each in copied]
    lines = []
    for operator in operators[:MAX_RINGS]:
        mine = names == rows.get(operator, -1)
        kind = "ring" if operator in observation.rings else "state"
        lines.append(_line((f"{kind} {operator}  ", "dim"), _owners(observation, operator, mine)))
        if operator in copied:
            lines.append(_line((f"  copies of {_copies(observation, mine)}", "dim")))
    if len(operators) > MAX_RINGS:
        lines.append(Text(f"and {counted(len(operators) - MAX_RINGS, 'ring')} more", style="dim"))
    if observation.standby.why:
        lines.append(_line((f"copies: {observation.standby.why}", "yellow")))
    return lines


def _line(*parts: str | Text | tuple[str, str]) -> Text:
    return Text.assemble(*parts, overflow="ellipsis", no_wrap=True)


def _owners(observation: Observation, operator: str, mine: NDArray[np.bool_]) -> str:
    hosts, tasks = observation.hosts.ids, observation.tasks
    keepers = _keepers(observation)
    on = {
        hosts[row]: np.flatnonzero(mine & (tasks.host == row)) for row in sorted(set(tasks.host[mine].tolist())) if row >= 0
    }
    order = [*observation.rings[operator].nodes] if operator in observation.rings else []
    parts = []
    for host in dict.fromkeys([*(each for each in order if each in on), *on]):
        copies: dict[str, int] = {}
        for task in on[host].tolist():
            for keeper in keepers.get(task, ()):
                copies[keeper] = copies.get(keeper, 0) + 1
        most = max(copies, key=lambda each: copies[each], default="")
        parts.append(f"{host} {percent(on[host].size / max(1, int(mine.sum())))}" + (f" (on {most})" if most else ""))
    return "  ".join(parts)


def _keepers(observation: Observation) -> dict[int, list[str]]:
    keepers: dict[int, list[str]] = {}
    for task, host in zip(observation.standby.task.tolist(), observation.standby.host.tolist(), strict=True):
        keepers.setdefault(task, []).append(observation.hosts.ids[host])
    return keepers


def _copies(observation: Observation, mine: NDArray[np.bool_]) -> str:
    lag = observation.tasks.column(Metric.STANDBY_LAG)[mine]
    have = int(np.isin(np.flatnonzero(mine), observation.standby.task).sum())
    lags = lag[~np.isnan(lag)]
    behind = float(lags.max()) if lags.size else math.nan
    text = f"{have} of {int(mine.sum())} state partitions"
    return text if math.isnan(behind) else f"{text}, {counted(round(behind), 'checkpoint')} behind at most"


def sparkline(values: Sequence[float] | deque[float], width: int) -> str:
    """Draw `values` as at most `width` bars, scaled from 0 to their maximum; unknown ones are blank."""
    numbers = [value for value in values if not math.isnan(value)]
    if width < 1 or not numbers:
        return ""
    samples = list(values)
    if len(samples) > width:
        # Each bar is the maximum of its section, so that peaks stay visible.
        edges = [round(n * len(samples) / width) for n in range(width + 1)]
        samples = [max((v for v in samples[a:b] if not math.isnan(v)), default=math.nan) for a, b in pairwise(edges)]
    top = max(numbers) or 1.0
    return "".join(" " if math.isnan(v) else BARS[min(7, int(max(0.0, v) / top * 7.999))] for v in samples)


def written(observation: Observation, metric: Metric) -> str:
    return quantity(metric, observation.overall(metric))


def whole(observation: Observation, metric: Metric) -> float:
    """Return a metric of the whole dataflow, or the sum over its sources if that is unknown."""
    overall = observation.overall(metric)
    if not math.isnan(overall):
        return overall
    return math.fsum(observation.operators.value(source.name, metric) for source in observation.context.graph.sources)


def style_of(value: float, level: float | None) -> str:
    if level is None or math.isnan(value):
        return ""
    return "green" if value <= level else "bold red"


def worth_showing(decision: Decision) -> bool:
    """Return True if a decision has outcomes, refusals, a note, or a metric lacking for rounds."""
    return acted(decision) or bool(decision.remarks)


def acted(decision: Decision) -> bool:
    return bool(decision.outcomes or any(proposal.refused for proposal in decision.proposals))


def summary_of(decision: Decision) -> str:
    """Return a decision on one line: outcomes, refusals, note and lacking metrics, with reasons."""
    moves = [outcome for outcome in decision.done if isinstance(outcome.action, MoveTask)]
    if len(moves) > MAX_MOVES:
        others = tuple(outcome for outcome in decision.outcomes if outcome not in moves)
        hosts = ", ".join(sorted({outcome.action.host for outcome in moves if isinstance(outcome.action, MoveTask)}))
        done = [f"move {len(moves)} tasks to {hosts}" + (f" ({why})" if (why := moves[0].action.why) else "")]
        done += [replace(decision, outcomes=others).headline()] if others else []
    else:
        done = [decision.headline()] if decision.outcomes else []
    refused = [f"{p.action.describe()}: refused, {p.refused}" for p in decision.proposals if p.refused]
    return "; ".join(filter(None, [*done, *refused, decision.remarks])) or UNKNOWN


def alike(one: Decision, other: Decision) -> bool:
    """Return True if two decisions differ at most in the figures of their remarks."""
    did = [summary_of(replace(each, unknown=(), note="")) for each in (one, other)]
    return one.repeats == other.repeats and did[0] == did[1]


def remember(decisions: deque[Decision], decision: Decision) -> None:
    """Append `decision`. It replaces its earlier version, one that reads alike, and a note that follows a note."""
    if not worth_showing(decision):
        return
    last = decisions[-1] if decisions else None
    if last and (last.round == decision.round or alike(last, decision) or not (acted(last) or acted(decision))):
        decisions.pop()
    elif any(earlier.round == decision.round for earlier in decisions):
        return
    decisions.append(decision)
