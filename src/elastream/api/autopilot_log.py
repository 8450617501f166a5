"""Autopilot's log lines, status and closing summary."""

import html
import logging
import math
import sys
import threading
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from elastream.core.action import Action, HostAction, LeaseHost, MoveTask, Outcome, ReleaseHost, Status
from elastream.core.decision import Decision
from elastream.core.hosts import HostState
from elastream.core.latency import basis_text
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import counted, duration_text, gist, money, quantities
from elastream.dataflow.operators import Kind
from elastream.observability.events import HARMLESS_REFUSALS
from elastream.recording.observer import Ending, Header
from elastream.settings import AutopilotSettings
from elastream.spark.attach import AttachedPlant
from elastream.spark.jvm.capabilities import Capabilities
from elastream.spark.queries.watched import QueryService
from elastream.units import format_duration

if TYPE_CHECKING:
    from elastream.policies.savings import Savings

log = logging.getLogger("elastream.autopilot")

# Messages that `status()` repeats.
STATUS_MESSAGES = 5
# Seconds after which a request that is still pending is explained: a cold executor takes 15.
PENDING_S = 30.0
COUNTED: Mapping[type[Action], tuple[str, str]] = {
    LeaseHost: ("executor", "requested"),
    ReleaseHost: ("executor", "returned"),
    MoveTask: ("partition", "moved"),
}


class _Console(logging.Handler):
    """Writes Autopilot's lines on stderr if the program configured no logging."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        self.users = 0  # Autopilots that show their lines now
        self.lends_level = False

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)  # read now: a notebook replaces it

    def filter(self, record: logging.LogRecord) -> bool:
        others = [*logging.getLogger().handlers, *logging.getLogger("elastream").handlers, *log.handlers]
        return others == [self] and (record.name == log.name or record.levelno >= logging.WARNING)


_console_lock = threading.Lock()
_console = _Console()


@contextmanager
def on_console(show: bool) -> Iterator[None]:
    """Show Autopilot's lines on stderr inside the context, unless the program configures logging."""
    if not show:
        yield
        return
    package = logging.getLogger("elastream")
    with _console_lock:
        if not _console.users:
            package.addHandler(_console)
            _console.lends_level = log.level == logging.NOTSET and not logging.getLogger().handlers
            if _console.lends_level:
                log.setLevel(logging.INFO)
        _console.users += 1
    try:
        yield
    finally:
        with _console_lock:
            _console.users -= 1
            if not _console.users:
                package.removeHandler(_console)
                if _console.lends_level:
                    log.setLevel(logging.NOTSET)


@dataclass(frozen=True)
class AutopilotStatus:
    """State of an Autopilot at one moment.

    Attributes:
        state: "waiting" for a query or the first observation, "watching", "observing only", "paused", or "ended".
        hosts: Executors that take tasks.
        coming: Those requested or starting.
        throughput: Records committed per second; NaN if unknown.
        latency_p50: Median latency (seconds); NaN if unknown.
        latency_p99: 99th percentile of the latency (seconds); NaN if unknown.
        in_time: Share of the records within the target latency; NaN if unknown.
        target_latency: Seconds; None without one.
        basis: Moment from which latencies count. "upper bound" for queries whose records carry no time.
        cost: Money for hosts so far; NaN without prices.
        savings: Costs of other fleets on the same load, in words; empty if unknown.
        messages: Latest lines, the newest last.
        services: Service of each query, by name.
    """

    state: str = "waiting"
    queries: tuple[str, ...] = ()
    hosts: int = 0
    coming: int = 0
    throughput: float = math.nan
    latency_p50: float = math.nan
    latency_p99: float = math.nan
    in_time: float = math.nan
    target_latency: float | None = None
    basis: str = ""
    cost: float = math.nan
    savings: str = ""
    messages: tuple[str, ...] = ()
    services: Mapping[str, QueryService] = field(default_factory=dict)

    def rows(self) -> Mapping[str, str]:
        coming = f", {self.coming} coming" if self.coming else ""
        latency = f"median {_figure(self.latency_p50, 's')}, 99 % within {_figure(self.latency_p99, 's')}"
        share = "unknown" if math.isnan(self.in_time) else f"{self.in_time:.1%}"
        target = "no target" if self.target_latency is None else f"{share} within {self.target_latency:g} s"
        return {
            "state": self.state,
            "queries": ", ".join(self.queries) or "none yet",
            "executors": f"{self.hosts}{coming}",
            "throughput": _figure(self.throughput, "records/s"),
            "latency": latency + (f" ({self.basis})" if self.basis else ""),
            "in time": target,
            **({name: _service_text(each) for name, each in self.services.items()} if len(self.services) > 1 else {}),
            **({} if math.isnan(self.cost) else {"cost so far": _cost(self)}),
        }

    def __str__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.rows().items()]
        return "\n".join([*lines, *self.messages])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self.rows().items())
        lines = "".join(f"<div>{html.escape(each)}</div>" for each in self.messages)
        return f"<table>{rows}</table>{lines}"


def _service_text(service: QueryService) -> str:
    target = "" if service.target is None else f" of {service.target:g} s"
    parts = [f"at most {_figure(service.latency, 's')}{target}"]
    parts += [] if math.isnan(service.work) else [f"{service.work:.0%} of the work"]
    return "; ".join([", ".join(parts), *([service.late] if service.late else [])])


def _cost(status: AutopilotStatus) -> str:
    return "; ".join(filter(None, [money(status.cost), status.savings]))


def _figure(value: float, unit: str) -> str:
    return "unknown" if math.isnan(value) else f"{value:,.3g} {unit}"


def intentions(can: Capabilities, settings: AutopilotSettings, leases: bool) -> str:
    """Return what Autopilot may do in a session, and what it will not do, with reasons."""
    may, will_not = [], []
    if can.task_loads is None:
        will_not.append("move state partitions")
    else:
        may.append("move state partitions")
    most = settings.max_hosts
    if leases:
        may.append("lease and release hosts" + ("" if most is None else f", up to {most} in all"))
    elif can.asks and most is not None:
        named = f" ({can.limit.name} allows no more)" if can.limit.executors < most else ""
        may.append(f"request {settings.min_hosts} to {min(most, can.limit.executors)} executors{named}")
    else:
        will_not.append("request executors" + (" (give it max_hosts)" if most is None else ""))
    verb = "would only plan to" if settings.observe_only else "may"
    done = f"{verb} {' and '.join(may)}" if may else "only observes"
    return done + (f"; will not {' or '.join(will_not)}" if will_not else "") + "; leaves queries and settings as they are"


class AutopilotLog:
    """An observer that logs observations, actions and refusals, each once while it lasts, and keeps the status."""

    def __init__(self, plant: AttachedPlant, settings: AutopilotSettings, intentions: str) -> None:
        self._plant, self._period, self._observe_only = plant, float(settings.period), settings.observe_only
        self._target, self._intentions = settings.latency, intentions
        self._watched: tuple[str, ...] | None = None
        self._last: dict[str, str] = {}
        self._lacked: set[Hashable] = set()
        self._explained: set[tuple[str, str]] = set()
        self._logged: set[tuple[Action, Status]] = set()
        self._has_batches = False
        self._notes: frozenset[str] = frozenset()
        self._messages: deque[str] = deque(maxlen=STATUS_MESSAGES)
        self._status = AutopilotStatus(target_latency=self._target)
        self._done: dict[tuple[str, str], int] = {}
        self._savings: Savings | None = None

    @property
    def status(self) -> AutopilotStatus:
        return replace(self._status, messages=tuple(self._messages))

    def started(self, header: Header) -> None:
        self._write(logging.INFO, f"autopilot observes every {format_duration(self._period)}; it {self._intentions}")

    def observed(self, observation: Observation) -> None:
        graph = observation.context.graph
        queries, stages = ([o.name for o in graph.operators if o.kind is kind] for kind in (Kind.SOURCE, Kind.KEYED))
        if graph.operators and graph.order != self._watched:
            self._watched = graph.order
            self._write(
                logging.INFO,
                f"autopilot watches {', '.join(queries)}; stages with state: {', '.join(stages) or 'none yet'}",
            )
        for host, lease in observation.leases.items():
            tasks = observation.hosts.value(host, Metric.TASKS)
            does = "would move" if self._observe_only else "moves"
            leaves = f"autopilot {does} {tasks:.0f} partitions off {self._plant.describe(host)}, which is leaving"
            self._log_once(host, leaves if lease.state is HostState.DRAINING and tasks > 0 else "", again=False)
            # Once in all: between two batches of a real-time query, the reason comes and goes.
            if (waits := self._waits(host, observation)) and (host, gist(waits)) not in self._explained:
                self._explained.add((host, gist(waits)))
                self._write(logging.INFO, waits)
        busy = self._plant.look_seconds > self._period
        slow = f"the driver took {self._plant.look_seconds:.1f} s to answer: autopilot observes less often"
        self._log_once("busy", slow if busy else "")
        self._has_batches = self._has_batches or bool(observation.batches)
        self._status = replace(
            self._status,
            state="observing only" if self._observe_only else "watching" if queries else "waiting",
            queries=tuple(queries),
            hosts=len(observation.usable),
            coming=len(observation.coming),
            throughput=observation.overall(Metric.THROUGHPUT),
            latency_p50=observation.overall(Metric.LATENCY_P50),
            latency_p99=observation.overall(Metric.LATENCY_P99),
            in_time=observation.overall(Metric.COMPLIANCE),
            basis=basis_text(observation.latency_basis),
            services=self._plant.queries.services(observation.diagnoses),
            cost=observation.cost,
            savings="" if math.isnan(observation.cost) else self._fleets(observation),
        )

    def _fleets(self, observation: Observation) -> str:
        from elastream.policies.savings import Savings, savings_text  # an Autopilot without prices never needs the policies

        if self._savings is None:
            self._savings = Savings(self._target)
        self._savings.observed(observation)
        return savings_text(self._savings.fleets(tuple(observation.context.host_types.values()), observation.time))

    def _waits(self, host: str, observation: Observation) -> str:
        lease, name = observation.leases[host], self._plant.describe(host)
        if lease.state is HostState.REQUESTED:
            long = observation.time - lease.since >= PENDING_S
            return f"{host} is still pending: {lease.note or 'Spark does not say why'}" if long else ""
        if host in observation.pinned:
            return f"{name} stays: {observation.pinned[host]}"
        leaving = lease.state is HostState.RELEASING and host in observation.occupied
        return f"{name} is leaving, and waits for {observation.occupied[host]}" if leaving else ""

    def decided(self, decision: Decision) -> None:
        if decision.actual:
            return
        for outcome in decision.outcomes:
            self._log(outcome)
        self._logged = {(outcome.action, outcome.status) for outcome in decision.outcomes}
        would = [p.action for p in decision.proposals if p.refused == "observe only"]
        self._log_once("would", "; ".join(f"would {action.describe()} ({action.why})" for action in would))
        notes = [note for note in decision.note.split("; ") if note]
        if fresh := [note for note in notes if gist(note) not in self._notes]:
            self._write(logging.INFO, "; ".join(fresh))
        self._notes = frozenset(map(gist, notes))
        refused = [p for p in decision.proposals if p.refused and not p.refused.startswith(HARMLESS_REFUSALS)]
        self._log_once("refused", "; ".join(f"does not {each.action.describe()}: {each.refused}" for each in refused))
        quiet = not (decision.outcomes or would or decision.note or refused or decision.lasting)
        self._log_once("quiet", _idle_text(decision.seen) if quiet and self._has_batches else "")
        for each in decision.lasting:
            if each.key not in self._lacked:
                self._write(logging.WARNING, f"autopilot {each}")
        self._lacked = {each.key for each in decision.lasting}
        log.debug("round %d: observed %s", decision.round, quantities(decision.seen))

    def ended(self, ending: Ending) -> None:
        self._status = replace(self._status, state="ended", coming=0)
        if ending.status == "failed":
            self._write(logging.ERROR, f"autopilot stopped: {ending.reason}")
            return
        self._write(logging.INFO, f"autopilot stopped: {ending.reason or 'all watched queries ended'}")
        self._write(logging.INFO, self._summary(ending))

    def _summary(self, ending: Ending) -> str:
        facts, status = ending.facts, self._status
        batches, records = (int(float(facts.get(name, 0))) for name in ("batches", "records"))
        parts = [f"{counted(batches, 'batch', 'batches')} of {records:,} records in {duration_text(ending.time)}"]
        parts += [f"{counted(number, noun)} {verb}" for (noun, verb), number in self._done.items()] or ["nothing changed"]
        if status.target_latency is not None and not math.isnan(status.in_time):
            basis = f" ({status.basis})" if status.basis else ""
            parts.append(f"{status.in_time:.1%} of the records within {status.target_latency:g} s{basis}")
        work = [f"{name} {each.work:.0%}" for name, each in status.services.items() if not math.isnan(each.work)]
        parts += [f"work of {', '.join(work)}"] if len(work) > 1 else []
        parts += [] if math.isnan(status.cost) else [f"cost {_cost(status)}"]
        return f"autopilot summary: {', '.join(parts)}"

    def _log(self, outcome: Outcome) -> None:
        if (outcome.action, outcome.status) in self._logged:
            return
        action = outcome.action
        text = action.describe()
        if isinstance(action, HostAction | MoveTask) and (host := self._plant.describe(action.host)) != action.host:
            text = f"{text}, which is {host}"
        if not outcome.succeeded:
            self._write(logging.WARNING, f"{text}: {outcome.status}, {outcome.reason}")
            return
        self._write(logging.INFO, f"{text} ({action.why})")
        if (what := COUNTED.get(type(action))) is not None:
            self._done[what] = self._done.get(what, 0) + 1

    def _log_once(self, subject: str, text: str, *, again: bool = True) -> None:
        """Log `text` unless it repeats the last text about `subject`; without `again`, unless there was one."""
        last = self._last.get(subject, "")
        if text and (gist(last) != gist(text) if again else not last):
            self._write(logging.WARNING if subject == "busy" else logging.INFO, text)
        self._last[subject] = text

    def _write(self, level: int, text: str) -> None:
        self._messages.append(text)
        log.log(level, "%s", text)


def _idle_text(figures: Mapping[str, float]) -> str:
    rate = figures.get("arrival_rate", math.nan)
    load = "the load is unknown" if math.isnan(rate) else f"{_figure(rate, 'records/s')} arrive"
    busy, cores = figures.get("busy_cores", math.nan), figures.get("usable_cores", math.nan)
    work = f"; {busy:.2g} of {cores:g} cores work" if not (math.isnan(busy) or math.isnan(cores)) else ""
    return f"autopilot changes nothing: {load}{work}"
