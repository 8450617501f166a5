"""System signals: the metrics of an observation that guards can read by name."""

import re
from collections.abc import Iterable, Iterator

from elastream.core.metrics import PLANTS, Metric, Rows, of_application
from elastream.core.observation import Observation
from elastream.dataflow.operators import Operator
from elastream.dataflow.signals import Signal, SignalReading
from elastream.guards.language import RESERVED
from elastream.guards.subject import Subject

_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_METRICS = {metric.value: metric for metric in Metric}


def system_signals(subject: Subject | None = None) -> Iterator[Signal]:
    """`latency_p99`, `backlog`, ... of the application, and with `subject` `OPERATOR.METRIC` of every operator whose name
    is one in CEL, too."""
    plants = tuple(PLANTS.values())
    for metric in Metric:
        if metric in of_application():
            yield Signal(metric.value)
    for name, kind in subject.operators.items() if subject is not None else ():
        if not _PART.match(name) or name in RESERVED:
            continue
        for metric in Metric:
            if any(metric.promised(Rows.OPERATOR, plant, Operator(name, kind)) for plant in plants):
                yield Signal(f"{name}.{metric.value}")


def system_readings(observation: Observation, names: Iterable[str]) -> dict[str, SignalReading]:
    """Readings of the system signals among `names`: the metrics of `observation`, each as old as it is there."""
    found, application = {}, observation.application
    whole = application.ids[0] if application.ids else ""
    for name in names:
        operator, _, last = name.rpartition(".")
        if (metric := _METRICS.get(last)) is None or (operator and operator not in observation.operators):
            continue
        reading = observation.operators.reading(operator, metric) if operator else application.reading(whole, metric)
        found[name] = SignalReading(reading.value, observation.time - reading.age)
    return found
