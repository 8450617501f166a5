"""Prometheus metrics of a run. A scrape returns the last observation."""

import logging
import math
import os
import platform
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastream.core.decision import Decision
from elastream.core.event import Reason, RunEvent, types_of
from elastream.core.hosts import HostState
from elastream.core.latency import share_within
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.promises import PROMISES
from elastream.core.scaling import LIMIT_NAMES, rule_of
from elastream.errors import needed_by
from elastream.observability.events import EventBook
from elastream.policies.savings import Savings
from elastream.recording.costs import CostSplit
from elastream.recording.observer import Ending, Header
from elastream.settings import Address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Family

# Metrics name hosts and need no login, so that other machines read them only on request, or from a container.
LOOPBACK, EVERY_ADDRESS = "127.0.0.1", "0.0.0.0"
EXPORTED_ROWS = (Rows.APPLICATION, Rows.OPERATOR, Rows.HOST)  # tasks and links may be tens of thousands
# metrics that only grow during a run
COUNTERS = frozenset({Metric.SCALINGS, Metric.MIXED_RECORDS, Metric.LEFT_OUT, Metric.COST})
# upper bounds of histogram buckets: 2.5 ms to 2500 s, three a decade
BUCKETS_S = tuple(base * power for power in (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0) for base in (1.0, 2.5, 5.0))[1:-1]
LABELS: Mapping[Rows, tuple[str, ...]] = {
    Rows.APPLICATION: (),
    Rows.OPERATOR: ("query", "operator"),
    Rows.HOST: ("host",),
}


log = logging.getLogger(__name__)


def in_container() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ or Path("/.dockerenv").exists()


def metrics_address(metrics: Address | None, metrics_port: int | None) -> Address | None:
    """Return the host and port to serve metrics at, with a default host; None if they are not served.

    `metrics_port` is the older name of a bare port, and works until 0.3.
    """
    if metrics is None and metrics_port is not None:
        sentence = f"metrics_port is now metrics (--metrics {metrics_port}); the old name goes with 0.3"
        log.warning("%s", sentence)
        warnings.warn(sentence, DeprecationWarning, stacklevel=2)
        metrics = Address("", metrics_port)
    if metrics is None or metrics.host:
        return metrics
    if not in_container():
        return Address(LOOPBACK, metrics.port)
    log.warning("metrics are served on all addresses of this container; %s:%d keeps them inside", LOOPBACK, metrics.port)
    return Address(EVERY_ADDRESS, metrics.port)


def metric_name(rows: Rows, metric: Metric) -> str:
    """Return the Prometheus name of a metric, such as `"elastream_application_latency_p99_seconds"`."""
    name, unit = f"elastream_{rows}_{metric}", metric.quantity.base_unit
    name = name if not unit or name.endswith(f"_{unit}") else f"{name}_{unit}"
    return f"{name}_total" if metric in COUNTERS else name


class _Buckets:
    def __init__(self) -> None:
        self.below = [0.0] * len(BUCKETS_S)
        self.count = self.sum = 0.0

    def add(self, records: float, oldest: float, newest: float) -> None:
        for place, bound in enumerate(BUCKETS_S):
            self.below[place] += records * share_within(bound, oldest, newest)
        self.count += records
        self.sum += records * (oldest + newest) / 2

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        return [*((f"{bound:g}", below) for bound, below in zip(BUCKETS_S, self.below, strict=True)), ("+Inf", self.count)]


class PrometheusObserver:
    """Metrics named `elastream_...` in `registry`, or served at `host` and `port`.

    A gauge or counter for every metric of application, operators and hosts that a plant measures; histograms of batch
    durations and latencies; the controller's actions. Each series has the labels `run` and `application`.
    """

    def __init__(self, registry: "CollectorRegistry | None" = None, port: int | None = None, host: str = LOOPBACK) -> None:
        with needed_by("serving Prometheus metrics"):
            from prometheus_client import CollectorRegistry, start_http_server

        self._registry = CollectorRegistry() if registry is None else registry
        self._server: Any = None
        self._about: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._currency = ""
        self._observation: Observation | None = None
        self._decision: Decision | None = None
        self._durations: dict[str, _Buckets] = {}
        self._latencies: dict[str, _Buckets] = {}
        self._actions: Counter[tuple[str, ...]] = Counter()
        self._refusals: Counter[tuple[str, ...]] = Counter({(rule,): 0 for rule in (*LIMIT_NAMES, "none")})
        # Series that begin at 0: of one that begins at 1, Prometheus sees no increase.
        self._errors: Counter[tuple[str, ...]] = Counter({("controller",): 0, ("plant",): 0})
        self._events: Counter[tuple[str, ...]] = Counter(
            {(each.value, kind): 0 for each in Reason for kind in types_of(each)}
        )
        self._book = EventBook()
        self._costs = CostSplit()
        self._savings = Savings(None)
        self._rounds = 0
        self._registry.register(self)
        if port is not None:
            self._server, _ = start_http_server(port, addr=host, registry=self._registry)

    def started(self, header: Header) -> None:
        from elastream import __version__

        self._about = {
            "version": __version__,
            "python": platform.python_version(),
            "spark": str(header.environment.get("spark", "")),
            "plant": header.plant,
            "policy": header.policy,
        }
        directory = str(header.environment.get("directory", ""))
        self._labels = {
            "run": str(header.environment.get("run", Path(directory).name)),
            "application": str(header.environment.get("application", header.flow)),
        }
        self._errors.setdefault((f"policy {header.policy}",), 0)
        self._events.update((Reason.RUN_STARTED.value, kind) for kind in types_of(Reason.RUN_STARTED))
        self._savings = Savings(header.target_latency, header.began)
        self._currency = str(header.environment.get("currency", ""))

    def observed(self, observation: Observation) -> None:
        """Store the observation for the next scrape, and count its batches."""
        self._observation = observation
        self._count(self._book.observed(observation))
        self._costs.observed(observation)
        self._savings.observed(observation)
        for batch in observation.batches:
            self._durations.setdefault(batch.segment, _Buckets()).add(1.0, batch.seconds, batch.seconds)
            if batch.records > 0 and not math.isnan(batch.oldest):
                self._latencies.setdefault(batch.segment, _Buckets()).add(batch.records, batch.oldest, batch.newest)

    def decided(self, decision: Decision) -> None:
        """Count actions by outcome; a repeated decision counts once."""
        if decision.actual:
            return
        self._decision = decision
        self._count(self._book.decided(decision))
        self._rounds += 1
        self._actions.update((each.action.describe().split()[0], each.status.value) for each in decision.outcomes)
        self._refusals.update((rule_of(each.refused) or "none",) for each in decision.proposals if each.refused)
        self._errors.update((fault.source,) for fault in decision.faults)

    def ended(self, ending: Ending) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _count(self, events: Iterable[RunEvent]) -> None:
        self._events.update((event.reason.value, event.type) for event in events)

    def describe(self) -> "Iterable[Family]":
        return ()

    def collect(self) -> "Iterator[Family]":
        """Yield metric families for a scrape; unknown values have no sample, and nothing has one before the run starts."""
        labels = self._labels
        for family in self._families():
            samples = family.samples if labels else []
            family.samples = [each._replace(labels={**labels, **each.labels}) for each in samples]
            yield family

    def _families(self) -> "Iterator[Family]":
        from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily

        if self._about:
            yield InfoMetricFamily("elastream_build", "Versions, plant and policy of the run", value=self._about)
        observation, decision = self._observation, self._decision
        yield from self._plant_metrics(observation)
        yield from self._hosts(observation)
        if decision is not None:
            samples = [((), decision.hosts)]
            yield _gauge(
                "elastream_recommended_hosts",
                "Hosts that the policy recommends; a fraction is a part of one host",
                (),
                samples,
            )
            paused, advisory = (float(decision.mode == mode) for mode in ("paused", "observe only"))
            yield _gauge("elastream_paused", "1 while the controller is paused", (), [((), paused)])
            yield _gauge("elastream_observe_only", "1 if the controller plans and applies nothing", (), [((), advisory)])
        yield _counter("elastream_rounds_total", "Planning rounds", (), {(): self._rounds})
        yield _counter("elastream_actions_total", "Actions by kind and outcome", ("action", "status"), self._actions)
        events = "Events by reason; one that repeats counts once"
        yield _counter("elastream_events_total", events, ("reason", "type"), self._events)
        meaning = "Proposals that were refused, by the scaling rule that refused them; none: not by a scaling rule"
        yield _counter("elastream_refusals_total", meaning, ("rule",), self._refusals)
        yield _counter("elastream_errors_total", "Faults that the run survived, by source", ("source",), self._errors)
        yield from self._money()
        for name, meaning, histograms in (
            ("elastream_query_batch_duration_seconds", "Durations of micro-batches by query", self._durations),
            ("elastream_query_latency_seconds", "Time from a record being due to its commit by query", self._latencies),
        ):
            family = HistogramMetricFamily(name, meaning, labels=("query",))
            for query, buckets in list(histograms.items()):
                family.add_metric((query,), buckets.cumulative, buckets.sum)
            yield family

    def _money(self) -> "Iterator[Family]":
        costs, currency = self._costs, self._currency
        yield _counter("elastream_records_total", "Records taken from sources and committed", (), {(): costs.records})
        meaning = "Money for hosts by query, in proportion to the cores that it kept busy"
        by_query: dict[tuple[str, ...], float] = {(query, currency): money for query, money in list(costs.by_query.items())}
        yield _counter("elastream_query_cost_total", meaning, ("query", "currency"), by_query)
        meaning, spent = "Money for hosts per million records, since the start", math.fsum(by_query.values())
        each = [((currency,), 1e6 * spent / costs.records)] if costs.records > 0 and by_query else []
        yield _gauge("elastream_cost_per_million_records", meaning, ("currency",), each)
        types = () if self._observation is None else tuple(self._observation.context.host_types.values())
        fleets = self._savings.fleets(types, 0.0 if self._observation is None else self._observation.time)
        meaning, labels = "Money that another fleet would have cost so far on the same load", ("fleet", "currency")
        yield _gauge("elastream_fleet_cost", meaning, labels, [((each.name, currency), each.cost) for each in fleets])
        errors = [((each.name, currency), each.error) for each in fleets if not math.isnan(each.cost)]
        yield _gauge("elastream_fleet_cost_error", "Half the range of elastream_fleet_cost", labels, errors)

    def _plant_metrics(self, observation: Observation | None) -> "Iterator[Family]":
        for metric in Metric:
            for rows in EXPORTED_ROWS:
                if not any(rows is each.rows for each in PROMISES[metric]):
                    continue
                labels = (*LABELS[rows], "currency") if metric is Metric.COST else LABELS[rows]
                samples = [] if observation is None else self._samples(observation, rows, metric)
                name = metric_name(rows, metric)
                if metric in COUNTERS:
                    yield _counter(name, metric.meaning, labels, dict(samples))
                else:
                    yield _gauge(name, metric.meaning, labels, samples)

    def _samples(self, observation: Observation, rows: Rows, metric: Metric) -> list[tuple[tuple[str, ...], float]]:
        frame = observation.frames[rows]
        if metric is Metric.COST and math.isnan(observation.cost):
            return []
        values = zip(frame.ids, frame.column(metric).tolist(), strict=True)
        samples = [(row, value * metric.quantity.base_units) for row, value in values if not math.isnan(value)]
        if rows is Rows.OPERATOR:
            stages = observation.context.layout.stage_of
            return [((stages[row].segment if row in stages else "", row), value) for row, value in samples]
        if rows is Rows.APPLICATION:
            return [((self._currency,) if metric is Metric.COST else (), value) for _, value in samples]
        return [((row,), value) for row, value in samples]

    def _hosts(self, observation: Observation | None) -> "Iterator[Family]":
        states = Counter() if observation is None else Counter(lease.state for lease in observation.leases.values())
        by_state = [] if observation is None else [((state.value,), float(states[state])) for state in HostState]
        yield _gauge("elastream_hosts", "Leased hosts by state", ("state",), by_state)
        standing = Counter[str]() if observation is None else Counter(each.source for each in observation.alarms)
        samples = [((source,), float(count)) for source, count in standing.items()]
        yield _gauge(
            "elastream_alarm", "Standing alarms by source; elastream explain shows their text", ("source",), samples
        )
        if observation is None:
            return
        context = observation.context
        yield _gauge("elastream_min_hosts", "Fewest hosts allowed", (), [((), float(context.min_hosts))])
        yield _gauge("elastream_max_hosts", "Most hosts allowed", (), [((), float(context.max_hosts))])
        if context.target_latency is not None:
            level = [((), context.target_latency)]
            yield _gauge("elastream_target_latency_seconds", "Target latency of the application", (), level)


def _gauge(name: str, meaning: str, labels: Sequence[str], samples: Iterable[tuple[tuple[str, ...], float]]) -> "Family":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in samples:
        if not math.isnan(value):
            family.add_metric(values, value)
    return family


def _counter(name: str, meaning: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], float]) -> "Family":
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, meaning, labels=labels)
    for values, value in list(counts.items()):
        family.add_metric(values, value)
    return family
