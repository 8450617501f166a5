"""What an autopilot sees and does as Prometheus metrics: an observer like every other.

The library is imported when metrics are asked for, and not before.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

from elastream.model.action import describe
from elastream.model.cloud import HostState
from elastream.model.decision import Decision
from elastream.model.observation import Metric, Observation
from elastream.recording.observer import Ending, Header

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["PrometheusObserver"]


class PrometheusObserver:
    """Gauges and counters named `elastream_…` in `registry`, or, where that is None, in one served at `port`."""

    def __init__(self, registry: "CollectorRegistry | None" = None, port: int | None = None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        self._registry = CollectorRegistry() if registry is None else registry
        self._server: Any = None

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"elastream_{name}", text, labels, registry=self._registry)

        self._hosts = gauge("hosts", "Executors by state", "state")
        self._tasks = gauge("tasks", "State partitions on a host", "host")
        self._use = gauge("host_use_ratio", "Share of its slots that a host's tasks take", "host")
        self._busy = gauge("busy_cores", "Cores that a query's sources, or a stage with state, keep busy", "operator")
        self._rate = gauge("records_per_second", "Records taken", "operator")
        self._latency = gauge("latency_seconds", "Seconds that the oldest record of a recent batch took at most")
        self._batch = gauge("batch_seconds", "Seconds of the slowest query's last batch")
        self._cost = gauge("cost", "Money paid for hosts so far")
        self._alarms = gauge("alarm", "1 for each alarm that stands", "source", "said")
        self._actions = Counter(
            "elastream_actions", "Actions by kind and outcome", ("action", "status"), registry=self._registry
        )
        self._rounds = Counter("elastream_rounds", "Planning rounds", registry=self._registry)
        if port is not None:
            self._server, _ = start_http_server(port, registry=self._registry)

    def started(self, header: Header) -> None:
        """Nothing to tell yet."""

    def observed(self, observation: Observation) -> None:
        """Set the gauges; what is unknown is NaN."""
        states = Counter(lease.state for lease in observation.leases.values())
        for state in HostState:
            self._hosts.labels(state.value).set(states[state])
        for labelled in (self._tasks, self._use, self._busy, self._rate, self._alarms):
            labelled.clear()
        for alarm in observation.alarms:
            self._alarms.labels(alarm.source, alarm.said).set(1)
        for host in observation.hosts:
            self._tasks.labels(host).set(observation.hosts.value(host, Metric.TASKS))
            self._use.labels(host).set(observation.hosts.value(host, Metric.CPU))
        for operator in observation.operators:
            for labelled, metric in ((self._busy, Metric.BUSY_CORES), (self._rate, Metric.PROCESSED_RATE)):
                if (value := observation.operators.value(operator, metric)) == value:
                    labelled.labels(operator).set(value)
        row = observation.application.ids[0] if observation.application.ids else ""
        for single, metric in (
            (self._latency, Metric.LATENCY_P99),
            (self._batch, Metric.BATCH_DURATION),
            (self._cost, Metric.COST),
        ):
            single.set(observation.application.value(row, metric))

    def decided(self, decision: Decision) -> None:
        """Count what was done; a decision that comes again with what became of it is counted once."""
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
