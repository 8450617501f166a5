"""Live view of a run: one screen, repainted with every observation.

On a terminal the view uses the alternate screen and repaints it once a monitoring period, without flicker; what Spark's
JVM writes to the same terminal is overpainted and disappears with the alternate screen at the end. Without a terminal
(pipe, log file) it prints a line every few seconds.
"""

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from elastream.core.action import MoveTask
from elastream.core.decision import Decision
from elastream.core.latency import basis_text
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import UNKNOWN, amount, clock, duration_text, hosts_text, money, quantity, rate_text
from elastream.dashboard.rings import rings_of
from elastream.dashboard.so_far import SoFar
from elastream.dataflow.operators import Operator
from elastream.recording.observer import Ending, Header, Observer

EVERY = 10.0
"""Seconds between two lines of the plain view."""
AGAIN = 60.0
"""Seconds without a remark after which it is a line again: of several that come and go, each is said once."""
KEPT = 600
"""Samples kept for the sparklines."""
MOVES = 2
"""Most moves of a round that are listed one by one; more are summarised."""
ALARMS = 3
"""Most lines of active alarms."""
DECISIONS = 6
"""Most decisions shown."""
BETWEEN = 6
"""Lines other than figures, operators and decisions: title, latency, table heading, three blanks."""
BARS = "▁▂▃▄▅▆▇█"


class RunView(Observer, Protocol):
    """An observer that prints to the terminal and must restore it."""

    def awaited(self, flow: str) -> None:
        """Called before the first host is started, which takes seconds."""
        ...

    def close(self) -> None:
        """Restore the terminal; may be called twice, and before the run has started."""
        ...


def view_for(console: Console, length: float | None = None) -> RunView:
    """A `LiveView` on a terminal, else a `PlainView`."""
    return LiveView(console, length) if console.is_terminal and not console.is_dumb_terminal else PlainView(console)


class Screen:
    """A run on one screen: figures, operators, latest decisions. length: seconds that it lasts, if that is known."""

    def __init__(self, console: Console, length: float | None = None) -> None:
        self._console = console
        self._length = length
        self._header = Header("", "")
        self._observation: Observation | None = None
        self._sofar = SoFar()
        self._began: float | None = None
        self._load: deque[float] = deque(maxlen=KEPT)
        self._hosts: deque[float] = deque(maxlen=KEPT)
        self._decisions: deque[Decision] = deque(maxlen=DECISIONS)

    def awaited(self, flow: str) -> None:
        self._console.print(f"{flow}: starting the first host", markup=False, highlight=False, soft_wrap=True)

    def started(self, header: Header) -> None:
        self._header = header
        self._sofar = SoFar(header.target_latency)

    def observed(self, observation: Observation) -> None:
        self._observation = observation
        if self._began is None:  # seconds that the first host took to start, before the load began
            self._began = 0.0 if self._header.plant == "simulated" else observation.time
        self._sofar.observed(observation)
        self._load.append(whole(observation, Metric.ARRIVAL_RATE))
        self._hosts.append(float(len(observation.leases)))
        self._paint()

    def decided(self, decision: Decision) -> None:
        remember(self._decisions, decision)
        self._paint()

    def ended(self, ending: Ending) -> None:
        self.close()

    def close(self) -> None:
        """End showing; may be called twice."""

    def _paint(self) -> None:
        """Show the screen as it is now."""

    def screen(self) -> RenderableType:
        """The whole screen, for the console's current width and height."""
        width, height = self._console.size
        seen = self._observation
        head = self._head(seen)
        if seen is None:
            return Group(head, Text("waiting for the first observation", style="dim"))
        figures = self._figures(seen, width)
        alarms = [*_alarms(seen), *_closed(seen)]
        state = rings_of(seen)
        # Remaining lines go to operators first (except one for a decision), then to decisions.
        left = height - figures.row_count - BETWEEN - len(alarms) - len(state)
        operators = seen.context.graph.operators[: max(0, left - 1)]
        why = self._why(max(1, left - len(operators)))
        parts = (head, figures, self._latency(seen), self._operators(seen, operators, width), why)
        return Group(parts[0], *(alarms or [Text()]), *parts[1:3], *state, Text(), parts[3], Text(), parts[4])

    def _head(self, seen: Observation | None) -> Text:
        name = Text(self._header.flow, style="bold")
        if self._header.plant == "simulated":
            name.append(" simulated", style="italic yellow")
        elapsed = clock(seen.time) if seen else "0:00"
        if self._length is not None:
            elapsed += f" of {clock(self._length + (self._began or 0.0))}"
        resumed = "".join(f"   resumed {each}" for each in self._header.resumptions[-1:])
        about = (f"   {self._header.policy}   {elapsed}", "dim")
        return Text.assemble(name, about, (resumed, "yellow"), overflow="ellipsis", no_wrap=True)

    def _figures(self, seen: Observation, width: int) -> Table:
        curve = max(0, min(60, width - 44))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, min_width=18)
        table.add_column(no_wrap=True, style="cyan")
        table.add_row("rate in", rate_text(whole(seen, Metric.ARRIVAL_RATE)), sparkline(self._load, curve))
        table.add_row("processed", written(seen, Metric.THROUGHPUT), "")
        table.add_row("backlog", amount(np.round(whole(seen, Metric.BACKLOG))), "")
        hosts = f"{len(seen.leases)} leased, {len(seen.usable)} ready"
        table.add_row("hosts", hosts, Text(sparkline(self._hosts, curve), style="green"))
        if (left_out := seen.overall(Metric.LEFT_OUT)) > 0:
            table.add_row("left out", amount(left_out), Text("records that a function raised on", style="dim"))
        static = self._sofar.static
        beside = "" if static is None else f"static peak provision: {money(static[1])} ({hosts_text(static[0])})"
        table.add_row("cost so far", written(seen, Metric.COST), Text(beside, style="dim"))
        if self._header.target_latency is not None:
            records, _, time = self._sofar.in_time.partition(", ")  # in two columns: one is as narrow as other figures
            table.add_row("in time", records, Text(time, style="dim"))
        return table

    def _latency(self, seen: Observation) -> Text:
        target, p99 = self._header.target_latency, seen.overall(Metric.LATENCY_P99)
        return Text.assemble(
            ("latency      ", "dim"),
            f"p50 {written(seen, Metric.LATENCY_P50)}   p99 ",
            (duration_text(p99), style_of(p99, target)),
            ("" if target is None else f"   target {duration_text(target)}", "dim"),
            (f"   {basis_text(seen.latency_basis)}" if seen.latency_basis else "", "dim"),
            overflow="ellipsis",
            no_wrap=True,
        )

    def _operators(self, seen: Observation, operators: Sequence[Operator], width: int) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        table.add_column("operator", no_wrap=True, overflow="ellipsis", max_width=max(8, width - 40))
        for column in ("in", "p50", "p99"):
            table.add_column(column, justify="right", no_wrap=True)
        wide = width >= 64
        for column in ("level", "instances") if wide else ():
            table.add_column(column, justify="right", no_wrap=True)
        for operator in operators:

            def of(metric: Metric, name: str = operator.name) -> str:
                return quantity(metric, seen.operators.value(name, metric))

            p99, level = seen.operators.value(operator.name, Metric.DURATION_P99), operator.max_duration
            more = (duration_text(level), of(Metric.PARALLELISM)) if wide else ()
            table.add_row(
                _running(seen, operator),
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
            table.add_row(clock(decision.time), Text(summary_of(decision), overflow="ellipsis", no_wrap=True))
        return table


class LiveView(Screen):
    """Shows a run on the whole terminal."""

    def __init__(self, console: Console, length: float | None = None) -> None:
        super().__init__(console, length)
        self._live: Live | None = None

    def started(self, header: Header) -> None:
        super().started(header)
        self._live = Live(self.screen(), console=self._console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live.start(refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _paint(self) -> None:
        if self._live is not None:
            self._live.update(self.screen(), refresh=True)


class PlainView:
    """Prints a line of figures every `EVERY` seconds, and a line per decision with outcomes, refusals or a note.

    What decision after decision repeats is one line, and so is a remark that comes and goes.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0
        self._round = 0
        self._last: Decision | None = None
        self._remarked: dict[Hashable, float] = {}
        self._standing: dict[str, str] = {}
        self._closed: dict[str, str] = {}
        self._target: float | None = None
        self._sofar = SoFar()

    def awaited(self, flow: str) -> None:
        self._print(f"{flow}: starting the first host")

    def started(self, header: Header) -> None:
        self._target, self._sofar = header.target_latency, SoFar(header.target_latency)
        plant = " (simulated)" if header.plant == "simulated" else ""
        self._print(f"{header.flow}{plant}: started with policy {header.policy}")
        for each in header.resumptions[-1:]:
            self._print(f"{header.flow}: resumed {each}")

    def observed(self, observation: Observation) -> None:
        self._sofar.observed(observation)
        self._alarms(observation)
        if observation.time < self._next:
            return
        self._next = observation.time + EVERY
        figures = (
            f"rate in {rate_text(whole(observation, Metric.ARRIVAL_RATE))}",
            f"backlog {amount(np.round(whole(observation, Metric.BACKLOG)))}",
            f"p99 {written(observation, Metric.LATENCY_P99)}",
            *([f"in time {self._sofar.share}"] if self._target is not None else []),
            f"hosts {len(observation.usable)} of {len(observation.leases)}",
            f"cost {written(observation, Metric.COST)}",
            *([f"left out {amount(n)}"] if (n := observation.overall(Metric.LEFT_OUT)) > 0 else []),
        )
        self._print(f"{clock(observation.time):>7}  {'  '.join(figures)}")

    def decided(self, decision: Decision) -> None:
        if decision.round == self._round or not worth_showing(decision):
            return
        self._round = decision.round
        self._remarked = {each: time for each, time in self._remarked.items() if decision.time - time < AGAIN}
        heard = not acted(decision) and self._remarked.keys() >= set(decision.repeats)
        if decision.outcomes or not (heard or (self._last and alike(self._last, decision))):
            self._print(f"{clock(decision.time):>7}  {summary_of(decision)}")
        self._last = decision
        self._remarked |= dict.fromkeys(decision.repeats, decision.time)

    def ended(self, ending: Ending) -> None:
        reason = f": {ending.reason}" if ending.reason else ""
        self._print(f"{clock(ending.time):>7}  {ending.status}{reason}")

    def close(self) -> None:
        pass

    def _alarms(self, observation: Observation) -> None:
        now = {alarm.source: alarm.said for alarm in observation.alarms}
        for source, said in now.items():
            if self._standing.get(source) != said:
                self._print(f"{clock(observation.time):>7}  ALARM  {source}: {said}")
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


def _alarms(seen: Observation) -> list[Text]:
    """A line per active alarm; of more than `ALARMS`, the newest are only counted."""
    shown = seen.alarms if len(seen.alarms) <= ALARMS else seen.alarms[: ALARMS - 1]
    lines = [f"ALARM since {clock(alarm.since)}  {alarm.source}: {alarm.said}" for alarm in shown]
    if len(shown) < len(seen.alarms):
        lines.append(f"and {len(seen.alarms) - len(shown)} more alarms")
    return [Text(line, style="bold red", overflow="ellipsis", no_wrap=True) for line in lines]


def _closed(seen: Observation) -> list[Text]:
    """A line for elements of which nothing may run, or what may run is unknown; of several, the first is shown."""
    said = [standing.why for standing in seen.standings.values() if not standing.allowed]
    if not said:
        return []
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    return [Text(f"guards: {said[0]}{more}", style="yellow", overflow="ellipsis", no_wrap=True)]


def _running(seen: Observation, operator: Operator) -> Text:
    """An operator's name, with what it runs where it has several alternates, and where its records go by choice."""
    text, composition = Text(operator.name), seen.composition
    if len(operator.alternates) > 1:
        text.append(f" as {composition.alternate(operator).name}", style="cyan")
    choices = dict.fromkeys(edge.choice for edge in seen.context.graph.outputs[operator.name] if edge.choice is not None)
    for choice in choices:
        target = composition.running(choice)
        text.append(f" to {target or seen.context.graph.choices[choice][0]}", style="cyan")
    return text


def sparkline(values: Sequence[float] | deque[float], width: int) -> str:
    """Draw `values` as at most `width` bars, scaled from 0 to their maximum; a blank where unknown."""
    known = [value for value in values if not math.isnan(value)]
    if width < 1 or not known:
        return ""
    samples = list(values)
    if len(samples) > width:
        # Each bar is the maximum of its section, so that peaks stay visible.
        edges = [round(n * len(samples) / width) for n in range(width + 1)]
        samples = [max((v for v in samples[a:b] if not math.isnan(v)), default=math.nan) for a, b in pairwise(edges)]
    top = max(known) or 1.0
    return "".join(" " if math.isnan(v) else BARS[min(7, int(max(0.0, v) / top * 7.999))] for v in samples)


def written(seen: Observation, metric: Metric) -> str:
    """A metric of the whole dataflow as people read it."""
    return quantity(metric, seen.overall(metric))


def whole(seen: Observation, metric: Metric) -> float:
    """A metric of the whole dataflow, else the sum over its sources."""
    known = seen.overall(metric)
    if not math.isnan(known):
        return known
    return math.fsum(seen.operators.value(source.name, metric) for source in seen.context.graph.sources)


def style_of(value: float, level: float | None) -> str:
    """Text style of a latency compared with its service level; empty if either is unknown."""
    if level is None or math.isnan(value):
        return ""
    return "green" if value <= level else "bold red"


def worth_showing(decision: Decision) -> bool:
    """Whether a decision has outcomes, refusals, a note, or a metric that has been lacking for rounds."""
    return acted(decision) or bool(decision.remarks)


def acted(decision: Decision) -> bool:
    """Whether a decision has outcomes or refusals."""
    return bool(decision.outcomes or any(proposal.refused for proposal in decision.proposals))


def summary_of(decision: Decision) -> str:
    """Outcomes, refusals, note and lacking metrics of a decision with their reasons, on one line."""
    moves = [outcome for outcome in decision.done if isinstance(outcome.action, MoveTask)]
    if len(moves) > MOVES:
        others = tuple(outcome for outcome in decision.outcomes if outcome not in moves)
        hosts = ", ".join(sorted({outcome.action.host for outcome in moves if isinstance(outcome.action, MoveTask)}))
        done = [f"move {len(moves)} tasks to {hosts}" + (f" ({why})" if (why := moves[0].action.why) else "")]
        done += [replace(decision, outcomes=others).headline()] if others else []
    else:
        done = [decision.headline()] if decision.outcomes else []
    refused = [f"{p.action.describe()}: refused, {p.refused}" for p in decision.proposals if p.refused]
    return "; ".join(filter(None, [*done, *refused, decision.remarks])) or UNKNOWN


def alike(one: Decision, other: Decision) -> bool:
    """Whether two decisions say the same, but for figures of a note and for how long a metric has been unknown."""
    did = [summary_of(replace(each, unknown=(), note="")) for each in (one, other)]
    return one.repeats == other.repeats and did[0] == did[1]


def remember(decisions: deque[Decision], decision: Decision) -> None:
    """Append `decision`, or replace its earlier version.

    A decision with the same text as the last one replaces it, and so does one of two rounds in a row with only a note.
    """
    if not worth_showing(decision):
        return
    last = decisions[-1] if decisions else None
    if last and (last.round == decision.round or alike(last, decision) or not (acted(last) or acted(decision))):
        decisions.pop()
    elif any(known.round == decision.round for known in decisions):
        return
    decisions.append(decision)
