"""Domain signals on the driver: the parts that tasks report become one value a batch, readable once it is committed.

A part counts once for each batch and task: one that is reported again, by a task that ran again or a batch that is
replayed, replaces the one before.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.signals import SignalReading, Signals
from elastream.spark.telemetry.batches import Batch
from elastream.spark.worker.signals import Part, SignalRow, folded


class DomainSignals:
    """The signals that the diagnostic branches of `graph` give. A batch without records for one leaves its last value."""

    def __init__(self, graph: Graph) -> None:
        self._folds = {o.writes.name: o.writes.fold for o in graph.sinks if isinstance(o.writes, DomainSignal)}
        self._parts: dict[tuple[str, int], dict[str, dict[int, Part]]] = defaultdict(lambda: defaultdict(dict))
        self._newest: dict[str, SignalReading] = {}

    def told(self, rows: Iterable[SignalRow]) -> None:
        """Take the parts that tasks have reported, of batches committed or not."""
        for segment, batch, signal, partition, count, value in rows:
            self._parts[segment, batch][signal][partition] = (count, value)

    def committed(self, batches: Iterable[Batch], epoch: float) -> None:
        """Give the values of `batches`, which were committed, oldest first of each query. epoch: when the run began."""
        for batch in batches:
            done = sorted(number for segment, number in self._parts if segment == batch.query and number <= batch.id)
            for number in done:
                # One before it whose commit nobody saw was committed before it began.
                taken = (batch.end if number == batch.id else batch.start) - epoch
                for signal, by_task in self._parts.pop((batch.query, number)).items():
                    if (value := folded(self._folds[signal], by_task.values())) is not None:
                        self._newest[signal] = SignalReading(value, taken)

    @property
    def newest(self) -> Signals:
        """The newest reading of each signal, taken at the commit of its batch; one without any yet is left out."""
        found: Mapping[str, SignalReading] = dict(self._newest)
        return found
