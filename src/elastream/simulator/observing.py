"""Domain signals and figures of alternates in a simulated plant."""

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

# Rows of the alternate table.
AT: Mapping[Metric, int] = {Metric.SERVICE_TIME: 0, Metric.SELECTIVITY: 1, Metric.AGE: 2}
# Cap on the weight of earlier periods: random variation stays within a tenth.
ENOUGH = 100.0


class TracedSignals:
    """Newest reading of each traced domain signal, from when records last reached its sink."""

    def __init__(self, graph: Graph, network: QueueNetwork | FusedNetwork) -> None:
        signals = [sink.writes for sink in graph.sinks if isinstance(sink.writes, DomainSignal)]
        self._traces = {signal.name: signal.trace for signal in signals if signal.trace is not None}
        self._network = network
        self._readings: dict[str, SignalReading] = {}

    def newest(self, now: float) -> Signals:
        for name, trace in self._traces.items():
            reached = self._network.signalled.get(name)
            if reached is not None and (time := min(reached, now)) > self._time_of(name):
                self._readings[name] = SignalReading(trace(time), time)
        return dict(self._readings)

    def _time_of(self, name: str) -> float:
        reading = self._readings.get(name)
        return -np.inf if reading is None else reading.time


class AlternateMetrics:
    """Cost and selectivity of each alternate, from its last run; `rows` maps operators to table rows."""

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
        """Enter a period that ends at `now`: core-seconds a record, records/s in and out."""
        done = processed[self._columns]
        ran = done > 0
        if ran.any():
            columns = self._columns[ran]
            self._last[:, ran] = served[columns], emitted[columns] / done[ran], np.full(columns.size, now)

    def counted(self, station: Station, epoch: int, runs: Mapping[str, float], now: float) -> None:
        """Enter a period of an operator with several alternates under one composition."""
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
        """Enter alternates run by micro-batches on hosts of `speed`, with last commit times."""
        for (operator, alternate), time in until.items():
            if self._several.get(name := f"{operator}.{alternate}", (0.0, 0.0, -1.0))[2] != time:
                own = self._own(operator, alternate)
                self._several[name] = (own.work / speed, own.selectivity, time)

    def frame(self, now: float) -> Frame:
        has_run = ~np.isnan(self._last[AT[Metric.AGE]])
        table: Floats = self._last[:, has_run]
        if self._several:
            table = np.concatenate([table, np.array([*self._several.values()]).T], axis=1)
        if table.shape[1] != self._names[0]:
            names = [name for name, one in zip(self._single, has_run.tolist(), strict=True) if one]
            self._names = table.shape[1], {name: row for row, name in enumerate([*names, *self._several])}
        table[AT[Metric.AGE]] = np.maximum(0.0, now - table[AT[Metric.AGE]])
        return TableFrame(self._names[1], AT, table) if table.size else Frame()

    def _own(self, operator: str, alternate: str) -> Cost:
        cost = self._declared.get((operator, alternate))
        if cost is None:
            of = self._graph.by_name[operator]
            cost = own_cost(of, of.alternate(alternate), self._settings)
            assert cost is not None, "nothing runs whose cost is not known"
            self._declared[operator, alternate] = cost
        return cost
