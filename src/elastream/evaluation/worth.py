"""Worth of a simulated run by instant: throughput, value, profit and stability, by the equations of `core.qos`.

Throughput is relative to an instant's arrivals, with and without the backlog at its begin (4.4).
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
from elastream.policies.common.measures import known_mean
from elastream.policies.value_cost.policy import ValueCost
from elastream.policies.value_cost.problem import Goal
from elastream.policies.value_cost.reading import WorkHistory, read

Live: TypeAlias = Mapping[str, Sequence[tuple[Edge, float]]]

# least seconds of an instant: over less, throughput shows the rhythm of micro-batches
SHORTEST = 60.0
NEARLY = 1e-6


@dataclass(frozen=True, slots=True)
class Worth:
    """Run by instants (arrays, NaN where unknown).

    Attributes:
        ends: Seconds.
        throughput: Relative throughput of arrivals (4.7).
        waited: Likewise, with backlog.
        value: Application value (4.3) over dynamic operators; `value_all` over all.
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
        return known_mean(self.throughput)

    @property
    def mean_waited(self) -> float:
        return known_mean(self.waited)

    @property
    def money(self) -> float:
        return float(self.cost[-1]) if self.cost.size else math.nan

    def mean_value(self, over: str = "dynamic") -> float:
        return known_mean(self.value if over == "dynamic" else self.value_all)

    def profit(self, line: BreakEven | None, over: str = "dynamic") -> float:
        """Return the run's profit (4.8); NaN without a line."""
        return math.nan if line is None else line.profit(self.mean_value(over), self.money)

    def unstable(self, goal: Goal) -> int:
        """Return the number of instants off the throughput target by more than the tolerance (chi)."""
        return off_target(self.waited, goal.throughput, goal.tolerance)

    def worst(self, instants: int) -> float:
        """Return the least mean throughput over `instants`, backlog counted (5.2)."""
        return worst_interval(self.waited, instants)


def dynamic(graph: Graph) -> bool:
    return bool(graph.choices) or any(len(operator.alternates) > 1 for operator in graph.operators)


class WorthWatch:
    """Computes a run's worth from its observations.

    Args:
        goal: Its period is the run's length.
        instant: Seconds, at least SHORTEST.
    """

    def __init__(self, graph: Graph, goal: Goal, instant: float = SHORTEST) -> None:
        self._graph, self._goal = graph, goal
        self.line: BreakEven | None = None
        self._history: WorkHistory | None = None
        self._instant = max(instant, SHORTEST)
        self._time = self._counted = self._began = 0.0
        self._selectivity = {
            each.name: next((a.selectivity for a in each.alternates if a.selectivity is not None), 1.0)
            for each in graph.operators
        }
        self._waits: Mapping[str, float] = {}
        self._done: dict[str, float] = {}
        self._possible: dict[str, float] = {}
        self._value = np.zeros(2)
        self._rows: list[tuple[float, ...]] = []

    def look(self, observation: Observation) -> None:
        lasts, self._time = observation.time - self._time, observation.time
        if lasts <= 0:
            return
        if self.line is None:
            reading = read(observation, self._goal, self._instant, self._history)
            self._history = reading.history
            if self._goal.break_even_best is not None or reading.history.break_even is not None:
                self.line = reading.problem.line
        running = [value_of(self._graph, observation.composition, over) for over in ("dynamic", "all")]
        self._value += lasts * np.array(running)
        live = live_edges(self._graph, observation.composition)
        if observation.context.layout.unchained:
            newest = Sample(observation.time - observation.operators.age(Metric.PROCESSED_RATE), observation.operators)
            for sample in (*observation.history, newest):
                if sample.time > self._counted:
                    self._count(sample.operators, sample.time - self._counted, live)
                    self._counted = sample.time
        else:
            self._count_whole(observation, lasts)
        if observation.time - self._began >= self._instant - NEARLY:
            self._close(observation, live)

    def worth(self) -> Worth:
        return Worth(*np.array(self._rows, dtype=np.float64).reshape(-1, len(fields(Worth))).T)

    def _count(self, frame: Frame, lasts: float, live: Live) -> None:
        graph = self._graph
        for name in graph.by_name:
            done, emitted = frame.value(name, Metric.PROCESSED_RATE), frame.value(name, Metric.EMITTED_RATE)
            if done > 0 and not math.isnan(emitted):
                self._selectivity[name] = emitted / done
        arriving = {source.name: frame.value(source.name, Metric.ARRIVAL_RATE) for source in graph.sources}
        possible = rates_over(graph, live, arriving, self._selectivity)
        for name in outputs_of(graph):
            parts = [(e.source, part) for e in graph.inputs[name] for to, part in live[e.source] if to == e]
            left = math.fsum([part * frame.value(source, Metric.EMITTED_RATE) for source, part in parts])
            self._add(name, lasts * left, lasts * possible[name])

    def _count_whole(self, observation: Observation, lasts: float) -> None:
        metrics = (Metric.THROUGHPUT, Metric.ARRIVAL_RATE)
        done, arriving = (lasts * observation.application.value(self._graph.name, metric) for metric in metrics)
        self._add(self._graph.name, done, arriving)

    def _add(self, name: str, done: float, possible: float) -> None:
        self._done[name] = self._done.get(name, 0.0) + done
        self._possible[name] = self._possible.get(name, 0.0) + possible

    def _close(self, observation: Observation, live: Live) -> None:
        waiting = rates_over(self._graph, live, self._waits, self._selectivity)
        waiting[self._graph.name] = math.fsum(self._waits.values())
        most = {name: possible + waiting[name] for name, possible in self._possible.items()}
        value, value_all = (self._value / (observation.time - self._began)).tolist()
        cost = observation.application.value(self._graph.name, Metric.COST)
        shares = _share(self._done, self._possible), _share(self._done, most)
        self._rows.append((observation.time, *shares, value, value_all, cost, float(len(observation.leases))))
        backlogs = observation.operators.column(Metric.BACKLOG).tolist()
        self._waits = {name: waits for name, waits in zip(observation.operators.ids, backlogs, strict=True) if waits > 0}
        self._began, self._done, self._possible, self._value = observation.time, {}, {}, np.zeros(2)


def _share(done: Mapping[str, float], possible: Mapping[str, float]) -> float:
    """Return the mean ratio of `done` to `could`: 1 where nothing could, NaN where unknown."""
    parts = [min(1.0, done[name] / most) if most == most else math.nan for name, most in possible.items() if most != 0]
    return math.fsum(parts) / len(parts) if parts else 1.0


def value_of(graph: Graph, composition: Composition, over: str = "dynamic") -> float:
    """Return the application value (4.3) over elements with alternates ("dynamic") or over all operators."""
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
    values: dict[str, dict[str, float]] = {name: {} for name in graph.choices}
    for edge in graph.edges:
        if edge.choice is not None:
            values[edge.choice][edge.target] = edge.value
    return values


@dataclass(frozen=True, slots=True)
class Merits:
    """Columns of a comparison; `unstable` (chi) counts among `instants`."""

    throughput: float
    value: float
    profit: float
    unstable: int
    instants: int


def merits_of(watch: WorthWatch, goal: Goal) -> Merits:
    worth = watch.worth()
    return Merits(
        worth.mean_throughput,
        worth.mean_value(goal.over),
        worth.profit(watch.line, goal.over),
        worth.unstable(goal),
        len(worth.ends),
    )


def goal_of(graph: Graph, policies: Iterable[Policy], seconds: float) -> Goal | None:
    """Return the first goal of `policies`, else the default if the dataflow is dynamic."""
    goal = next((each.goal for each in policies if isinstance(each, ValueCost)), None)
    if goal is None and not dynamic(graph):
        return None
    return replace(goal or Goal(), period=seconds)
