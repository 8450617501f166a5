"""What a simulated plant observes beside operators and hosts: domain signals, and each alternate's own cost and selectivity.

A signal has a value whenever records reached its branch: that of its trace at that moment.
"""

from collections.abc import Mapping

import numpy as np

from elastream.model.endpoints import DomainSignal
from elastream.model.graph import Graph
from elastream.model.observation import Floats, Frame, Metric, TableFrame
from elastream.model.signals import SignalReading, Signals
from elastream.simulation.costs import Cost, own_cost
from elastream.simulation.fused import FusedNetwork
from elastream.simulation.network import QueueNetwork
from elastream.simulation.settings import Settings
from elastream.simulation.stations import Station

AT: Mapping[Metric, int] = {Metric.SERVICE_TIME: 0, Metric.SELECTIVITY: 1, Metric.AGE: 2}
"""Rows of the alternates' table."""
ENOUGH = 100.0
"""Records that earlier periods count for at most: single ones vary by their mean, so that this is off by a tenth."""


class SignalWatch:
    """The newest reading of each domain signal that has a trace."""

    def __init__(self, graph: Graph, network: QueueNetwork | FusedNetwork) -> None:
        signals = [sink.writes for sink in graph.sinks if isinstance(sink.writes, DomainSignal)]
        self._traces = {signal.name: signal.trace for signal in signals if signal.trace is not None}
        self._network = network
        self._readings: dict[str, SignalReading] = {}

    def newest(self, now: float) -> Signals:
        """The readings at `now`."""
        for name, trace in self._traces.items():
            reached = self._network.signalled.get(name)
            if reached is not None and (taken := min(reached, now)) > self._taken(name):
                self._readings[name] = SignalReading(trace(taken), taken)
        return dict(self._readings)

    def _taken(self, name: str) -> float:
        reading = self._readings.get(name)
        return -np.inf if reading is None else reading.taken


class AlternateWatch:
    """Cost and selectivity of each alternate that has run, as they were when it ran last."""

    def __init__(self, graph: Graph, settings: Settings) -> None:
        self._graph = graph
        self._settings = settings
        self._declared: dict[tuple[str, str], Cost] = {}
        self._known: dict[str, tuple[float, float, float]] = {}
        self._rows: dict[str, int] = {}
        self._sums: dict[str, tuple[int, float, float, float]] = {}

    def counted(self, station: Station, epoch: int, runs: Mapping[str, float], now: float) -> None:
        """Take what an operator of its own worked in the period that ends `now`, all of it under one composition."""
        tally, (since, work, done, emitted) = station.period, self._sums.get(station.name, (epoch, 0.0, 0.0, 0.0))
        if since != epoch:
            self._sums[station.name] = (epoch, 0.0, 0.0, 0.0)
            return
        weight = min(1.0, ENOUGH / done) if done > 0 else 0.0
        work = weight * work + tally.busy * station.operator.cores
        done, emitted = weight * done + tally.done, weight * emitted + tally.emitted
        self._sums[station.name] = (epoch, work, done, emitted)
        if tally.done <= 0:
            return
        for alternate, share in runs.items():
            if share == 1.0:
                self._known[f"{station.name}.{alternate}"] = (work / done, emitted / done, now)
                continue
            own = self._own(station.name, alternate)
            longer = work / done / station.work if station.work > 0 else 1.0
            more = emitted / done / station.selectivity if station.selectivity > 0 else 1.0
            self._known[f"{station.name}.{alternate}"] = (own.work * longer, own.selectivity * more, now)

    def ran(self, until: Mapping[tuple[str, str], float], speed: float) -> None:
        """Take it that micro-batches ran alternates, on hosts of `speed`, and when they were committed last."""
        for (operator, alternate), time in until.items():
            if self._known.get(name := f"{operator}.{alternate}", (0.0, 0.0, -1.0))[2] != time:
                own = self._own(operator, alternate)
                self._known[name] = (own.work / speed, own.selectivity, time)

    def frame(self, now: float) -> Frame:
        """A row per alternate that has run."""
        if not self._known:
            return Frame()
        if len(self._rows) != len(self._known):
            self._rows = {name: row for row, name in enumerate(self._known)}
        table: Floats = np.array([*self._known.values()]).T
        table[AT[Metric.AGE]] = np.maximum(0.0, now - table[AT[Metric.AGE]])
        return TableFrame(self._rows, AT, table)

    def _own(self, operator: str, alternate: str) -> Cost:
        found = self._declared.get((operator, alternate))
        if found is None:
            of = self._graph.by_name[operator]
            found = own_cost(of, of.alternate(alternate), self._settings)
            assert found is not None, "nothing runs whose cost is not known"
            self._declared[operator, alternate] = found
        return found
