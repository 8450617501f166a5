"""Exports the observations and actions of a run as Prometheus metrics.

The library is imported only where metrics are exported.
"""

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from elastream.model.action import describe
from elastream.model.cloud import HostState
from elastream.model.decision import Decision
from elastream.model.metrics import Metric
from elastream.model.observation import Observation
from elastream.model.promises import Rows
from elastream.recording.observer import Ending, Header

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["PrometheusObserver", "gauge_name"]


HERE = "127.0.0.1"
"""Where metrics are served: they name hosts, and nobody who reads them is asked for anything. Elsewhere a registry of one's
own can be served, behind what asks."""
EXPORTED = (Rows.APPLICATION, Rows.OPERATOR, Rows.HOST)
"""Tasks and links are left out: there may be tens of thousands."""


def gauge_name(rows: Rows, metric: Metric) -> str:
    """Name of the gauge of `metric`, in Prometheus' base units: `"elastream_application_latency_p99_seconds"`."""
    name, unit = f"elastream_{rows}_{metric}", metric.quantity.base_unit
    return name if not unit or name.endswith(f"_{unit}") else f"{name}_{unit}"


class PrometheusObserver:
    """Gauges and counters named `elastream_…` in `registry`, or, where that is None, in one that this machine is served at
    `port`.

    A gauge for every metric of the application, of operators and of hosts that any plant measures; labels: the row.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None, port: int | None = None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self._registry = CollectorRegistry() if registry is None else registry
        self._server: Any = None

        self._gauges = {
            (rows, metric): Gauge(gauge_name(rows, metric), metric.meaning, (rows.value,), registry=self._registry)
            for metric in Metric
            for rows in EXPORTED
            if any(rows is each for each, _ in metric.promises)
        }
        self._hosts = Gauge("elastream_hosts", "Leased hosts by state", ("state",), registry=self._registry)
        self._alarms = Gauge("elastream_alarm", "1 for each standing alarm", ("source", "said"), registry=self._registry)
        self._actions = Counter(
            "elastream_actions", "Actions by kind and outcome", ("action", "status"), registry=self._registry
        )
        self._rounds = Counter("elastream_rounds", "Planning rounds", registry=self._registry)
        if port is not None:
            self._server, _ = start_http_server(port, addr=HERE, registry=self._registry)

    def started(self, header: Header) -> None:
        """Do nothing: nothing is observed yet."""

    def observed(self, observation: Observation) -> None:
        """Set the gauges; what is unknown has no sample."""
        states = Counter(lease.state for lease in observation.leases.values())
        for state in HostState:
            self._hosts.labels(state.value).set(states[state])
        self._alarms.clear()
        for alarm in observation.alarms:
            self._alarms.labels(alarm.source, alarm.said).set(1)
        frames = dict(zip(EXPORTED, (observation.application, observation.operators, observation.hosts), strict=True))
        for (rows, metric), gauge in self._gauges.items():
            gauge.clear()
            for row, value in zip(frames[rows], frames[rows].column(metric).tolist(), strict=True):
                if not math.isnan(value):
                    gauge.labels(row).set(value * metric.quantity.base_units)

    def decided(self, decision: Decision) -> None:
        """Count actions by outcome; a decision that is repeated with its actual effect is not counted again."""
        if decision.actual:
            return
        self._rounds.inc()
        for outcome in decision.outcomes:
            self._actions.labels(describe(outcome.action).split()[0], outcome.status.value).inc()

    def ended(self, ending: Ending) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
