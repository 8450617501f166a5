"""What a simulated run was worth, from what was observed: throughput, value, profit and stability, by instant.

The equations are `core.qos`'s; nothing here comes from what a policy believed. Throughput is given twice: of what came in
an instant, and with what waited as it began (4.4), which is what policies hold.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from elastream.core.frames import Floats, Frame
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Observation, Sample
from elastream.core.plant import Policy
from elastream.core.qos import BreakEven, application_value, live_edges, off_target, outputs_of, rates_over, worst_interval
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge
from elastream.policies.value_cost.policy import ValueCost
from elastream.policies.value_cost.problem import Goal
from elastream.policies.value_cost.reading import WorkHistory, read

Live: TypeAlias = Mapping[str, Sequence[tuple[Edge, float]]]

SHORTEST = 60.0
"""Seconds of an instant, at least: over less, a share of throughput is the rhythm of micro-batches."""
NEARLY = 1e-6


@dataclass(frozen=True, slots=True)
class Worth:
    """A run by instants; arrays of shape (instants,).

    ends: seconds. throughput: relative, of the application, of what came in (4.7). waited: the same with what waited as the
    instant began. value, value_all: of the application (4.3) over its dynamic operators, and over all. cost: money so far.
    hosts: leased. Unknown is NaN.
    """

    ends: Floats
    throughput: Floats
    waited: Floats
    value: Floats
    value_all: Floats
    cost: Floats
    hosts: Floats

    @property
    def mean_throughput(self) -> float:
        """Mean relative throughput of what came in."""
        return _mean(self.throughput)

    @property
    def mean_waited(self) -> float:
        """Mean relative throughput with what waited."""
        return _mean(self.waited)

    @property
    def money(self) -> float:
        """Money spent up to the end of the last instant."""
        return float(self.cost[-1]) if self.cost.size else math.nan

    def mean_value(self, over: str = "dynamic") -> float:
        """Mean application value over the operators that Eq. 4.3 counts."""
        return _mean(self.value if over == "dynamic" else self.value_all)

    def profit(self, line: BreakEven | None, over: str = "dynamic") -> float:
        """Profit of the run (4.8); NaN without a line."""
        return math.nan if line is None else line.profit(self.mean_value(over), self.money)

    def unstable(self, goal: Goal) -> int:
        """Instants whose throughput, with what waited, is off the target by more than the tolerance (chi)."""
        return off_target(self.waited, goal.throughput, goal.tolerance)

    def worst(self, instants: int) -> float:
        """Least mean throughput, of what came in, over intervals of so many instants (5.2)."""
        return worst_interval(self.throughput, instants)


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def dynamic(graph: Graph) -> bool:
    """Whether a dataflow has alternates or branches to choose from, so that its value can differ."""
    return bool(graph.choices) or any(len(operator.alternates) > 1 for operator in graph.operators)


class WorthWatch:
    """Takes the observations of a run, and says what it was worth.

    goal: its period is the length of the run. instant: seconds of one, at least SHORTEST. line: between the break-even
    costs of the run; None until they are known: those of the goal, else what the first records cost.
    """

    def __init__(self, graph: Graph, goal: Goal, instant: float = SHORTEST) -> None:
        self._graph, self._goal = graph, goal
        self.line: BreakEven | None = None
        self._history: WorkHistory | None = None
        self._instant = max(instant, SHORTEST)
        self._seen = self._counted = self._began = 0.0
        self._selectivity = {
            each.name: next((a.selectivity for a in each.alternates if a.selectivity is not None), 1.0)
            for each in graph.operators
        }
        self._waits: Mapping[str, float] = {}
        self._done: dict[str, float] = {}
        self._could: dict[str, float] = {}
        self._value = np.zeros(2)
        self._rows: list[tuple[float, ...]] = []

    def look(self, seen: Observation) -> None:
        """Take an observation, and what of its history is new."""
        lasts, self._seen = seen.time - self._seen, seen.time
        if lasts <= 0:
            return
        if self.line is None:
            found = read(seen, self._goal, self._instant, self._history)
            self._history = found.history
            if self._goal.break_even_best is not None or found.history.break_even is not None:
                self.line = found.problem.line
        running = [value_of(self._graph, seen.composition, over) for over in ("dynamic", "all")]
        self._value += lasts * np.array(running)
        live = live_edges(self._graph, seen.composition)
        if seen.context.layout.unchained:
            newest = Sample(seen.time - seen.operators.age(Metric.PROCESSED_RATE), seen.operators)
            for sample in (*seen.history, newest):
                if sample.time > self._counted:
                    self._count(sample.operators, sample.time - self._counted, live)
                    self._counted = sample.time
        else:
            self._count_whole(seen, lasts)
        if seen.time - self._began >= self._instant - NEARLY:
            self._close(seen, live)

    def worth(self) -> Worth:
        """What it came to so far, in whole instants."""
        return Worth(*np.array(self._rows, dtype=np.float64).reshape(-1, len(fields(Worth))).T)

    def _count(self, frame: Frame, lasts: float, live: Live) -> None:
        """Count a monitoring period in which every operator was measured."""
        graph = self._graph
        for name in graph.by_name:
            done, emitted = frame.value(name, Metric.PROCESSED_RATE), frame.value(name, Metric.EMITTED_RATE)
            if done > 0 and not math.isnan(emitted):
                self._selectivity[name] = emitted / done
        came = {source.name: frame.value(source.name, Metric.ARRIVAL_RATE) for source in graph.sources}
        could = rates_over(graph, live, came, self._selectivity)
        for name in outputs_of(graph):
            parts = [(e.source, part) for e in graph.inputs[name] for to, part in live[e.source] if to == e]
            left = math.fsum([part * frame.value(source, Metric.EMITTED_RATE) for source, part in parts])
            self._add(name, lasts * left, lasts * could[name])

    def _count_whole(self, seen: Observation, lasts: float) -> None:
        """Count what the application took and committed, where operators run together."""
        metrics = (Metric.THROUGHPUT, Metric.ARRIVAL_RATE)
        done, came = (lasts * seen.application.value(self._graph.name, metric) for metric in metrics)
        self._add(self._graph.name, done, came)

    def _add(self, name: str, done: float, could: float) -> None:
        self._done[name] = self._done.get(name, 0.0) + done
        self._could[name] = self._could.get(name, 0.0) + could

    def _close(self, seen: Observation, live: Live) -> None:
        """End an instant."""
        waiting = rates_over(self._graph, live, self._waits, self._selectivity)
        waiting[self._graph.name] = math.fsum(self._waits.values())
        most = {name: could + waiting[name] for name, could in self._could.items()}
        value, value_all = (self._value / (seen.time - self._began)).tolist()
        cost = seen.application.value(self._graph.name, Metric.COST)
        shares = _share(self._done, self._could), _share(self._done, most)
        self._rows.append((seen.time, *shares, value, value_all, cost, float(len(seen.leases))))
        backlogs = seen.operators.column(Metric.BACKLOG).tolist()
        self._waits = {name: waits for name, waits in zip(seen.operators.ids, backlogs, strict=True) if waits > 0}
        self._began, self._done, self._could, self._value = seen.time, {}, {}, np.zeros(2)


def _share(done: Mapping[str, float], could: Mapping[str, float]) -> float:
    """Mean over the outputs of what was done of what could be; 1 where nothing could, NaN where one is unknown."""
    parts = [min(1.0, done[name] / most) if most == most else math.nan for name, most in could.items() if most != 0]
    return math.fsum(parts) / len(parts) if parts else 1.0


def value_of(graph: Graph, composition: Composition, over: str = "dynamic") -> float:
    """Application value of what runs (4.3), over operators and choices with alternates, or over all operators."""
    return application_value(
        [
            composition.alternate(each).value / (max(a.value for a in each.alternates) or 1.0)
            for each in graph.operators
            if len(each.alternates) > (1 if over == "dynamic" else 0)
        ],
        [
            values[composition.choices.get(name, graph.choices[name][0])] / (max(values.values()) or 1.0)
            for name, values in _branches(graph).items()
        ],
    )


def _branches(graph: Graph) -> Mapping[str, Mapping[str, float]]:
    """Values of the branches of each choice."""
    found: dict[str, dict[str, float]] = {name: {} for name in graph.choices}
    for edge in graph.edges:
        if edge.choice is not None:
            found[edge.choice][edge.target] = edge.value
    return found


@dataclass(frozen=True, slots=True)
class Merits:
    """The columns of a comparison. throughput: of what came in; value, profit: of the run; unstable: chi, of `instants`."""

    throughput: float
    value: float
    profit: float
    unstable: int
    instants: int


def merits_of(watch: WorthWatch, goal: Goal) -> Merits:
    """What a run that was watched came to."""
    worth = watch.worth()
    return Merits(
        worth.mean_throughput,
        worth.mean_value(goal.over),
        worth.profit(watch.line, goal.over),
        worth.unstable(goal),
        len(worth.ends),
    )


def goal_of(graph: Graph, policies: Iterable[Policy], seconds: float) -> Goal | None:
    """What the policies of a comparison are judged by: the goal of the first that has one, else the default one where
    there is something to choose from; None where nothing of it applies."""
    found = next((each.goal for each in policies if isinstance(each, ValueCost)), None)
    if found is None and not dynamic(graph):
        return None
    return replace(found or Goal(), period=seconds)
