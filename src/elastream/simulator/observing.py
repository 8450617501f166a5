"""What a simulated plant observes beside operators and hosts: domain signals, and figures of each alternate.

A signal has a value whenever records reached its branch: that of its trace at that moment.
"""

from collections.abc import Mapping

import numpy as np

from elastream.core.frames import Floats, Frame, TableFrame
from elastream.core.metrics import Metric
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.signals import SignalReading, Signals
from elastream.simulator.costs import Cost, own_cost
from elastream.simulator.fused import FusedNetwork
from elastream.simulator.network import QueueNetwork
from elastream.simulator.settings import Settings
from elastream.simulator.stations import Station

AT: Mapping[Metric, int] = {Metric.SERVICE_TIME: 0, Metric.SELECTIVITY: 1, Metric.AGE: 2}
"""Rows of the alternates' table."""
ENOUGH = 100.0
"""Records that earlier periods count for at most: single ones vary by their mean, so that this is off by a tenth."""


class TracedSignals:
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
        return -np.inf if reading is None else reading.time


class AlternateMetrics:
    """Cost and selectivity of each alternate that has run, from its last run.

    rows: row of each operator in the tables that are given. Those with one alternate are taken all at once.
    """

    def __init__(self, graph: Graph, settings: Settings, rows: Mapping[str, int]) -> None:
        self._graph = graph
        self._settings = settings
        self._declared: dict[tuple[str, str], Cost] = {}
        self._several: dict[str, tuple[float, float, float]] = {}
        self._sums: dict[str, tuple[int, float, float, float]] = {}
        single = [each for each in graph.operators if len(each.alternates) == 1]
        self._single = [f"{each.name}.{each.alternates[0].name}" for each in single]
        self._columns = np.array([rows[each.name] for each in single], dtype=np.int64)
        self._last = np.full((len(AT), len(single)), np.nan)
        self._names: tuple[int, Mapping[str, int]] = (-1, {})

    def period(self, served: Floats, processed: Floats, emitted: Floats, now: float) -> None:
        """Take a monitoring period that ends `now`: core-seconds a record, records/s in and out, by row."""
        done = processed[self._columns]
        ran = done > 0
        if ran.any():
            columns = self._columns[ran]
            self._last[:, ran] = served[columns], emitted[columns] / done[ran], np.full(columns.size, now)

    def counted(self, station: Station, epoch: int, runs: Mapping[str, float], now: float) -> None:
        """Take what an operator with several alternates worked in that period, all of it under one composition."""
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
        longer = work / done / station.work if station.work > 0 else 1.0
        more = emitted / done / station.selectivity if station.selectivity > 0 else 1.0
        for alternate in runs:
            own = self._own(station.name, alternate)
            self._several[f"{station.name}.{alternate}"] = (own.work * longer, own.selectivity * more, now)

    def ran(self, until: Mapping[tuple[str, str], float], speed: float) -> None:
        """Take it that micro-batches ran alternates, on hosts of `speed`, and when they were committed last."""
        for (operator, alternate), time in until.items():
            if self._several.get(name := f"{operator}.{alternate}", (0.0, 0.0, -1.0))[2] != time:
                own = self._own(operator, alternate)
                self._several[name] = (own.work / speed, own.selectivity, time)

    def frame(self, now: float) -> Frame:
        """A row per alternate that has run."""
        known = ~np.isnan(self._last[AT[Metric.AGE]])
        table: Floats = self._last[:, known]
        if self._several:
            table = np.concatenate([table, np.array([*self._several.values()]).T], axis=1)
        if table.shape[1] != self._names[0]:
            names = [name for name, one in zip(self._single, known.tolist(), strict=True) if one]
            self._names = table.shape[1], {name: row for row, name in enumerate([*names, *self._several])}
        table[AT[Metric.AGE]] = np.maximum(0.0, now - table[AT[Metric.AGE]])
        return TableFrame(self._names[1], AT, table) if table.size else Frame()

    def _own(self, operator: str, alternate: str) -> Cost:
        found = self._declared.get((operator, alternate))
        if found is None:
            of = self._graph.by_name[operator]
            found = own_cost(of, of.alternate(alternate), self._settings)
            assert found is not None, "nothing runs whose cost is not known"
            self._declared[operator, alternate] = found
        return found
