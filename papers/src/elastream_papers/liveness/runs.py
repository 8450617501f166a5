"""Checks that a policy acts under sustained overload, or names the metric that it lacks.

Verdicts rest on the plant's true state. Overload is sustained if in three intervals (rounds, or longer micro-batches) in
a row the backlog and its work grew by more than 5 % of the arrivals, while hosts remained to be leased. Policies that
act on queues tolerate 50 records and the arrivals within the service level, `horizon` those within the target latency. A
round is silent if no action makes room and no unknown metric is named.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from elastream.control.loop import Loop
from elastream.core.action import Action, CancelDrain, LeaseHost, MoveTask, RenewHost, SetParallelism
from elastream.core.decision import Decision, Unknown
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.core.promises import Condition, PlantKind, promised
from elastream.core.qos import offered_rates
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind, Operator
from elastream.dataflow.stages import Layout
from elastream.policies.common.provision import declared_cores
from elastream.policies.common.queues import NO_INSTANCE, service_levels, widened_queries
from elastream.policies.common.reach import HALF_HELP, IN_VAIN, NO_HELP, ON_TRIAL, beyond_partitions
from elastream.recording.observer import Observer
from elastream.simulator import SimulatedPlant
from elastream_papers.liveness.scenarios import FIXED, QUIET, LivenessCase, Scenario, scenario

ROUNDS = 3  # rounds for which a promised metric may stay unknown


def is_unknown(seen: Observation, unknown: Unknown) -> bool:
    """Return True if a metric that a policy reports missing is unknown in its observation."""
    frame = seen.frames[unknown.rows]
    if unknown.row:
        return math.isnan(frame.value(unknown.row, unknown.metric))
    return bool(np.isnan(frame.column(unknown.metric)).all())


class PromiseMonitor:
    """Counts promised metrics that stay unknown while records pass. broken: a sentence each.

    Records pass if a micro-batch with records was committed, or unchained, if some left the operator or reached a sink.
    """

    def __init__(self, layout: Layout, target: float | None, kind: PlantKind) -> None:
        self.layout, self.kind, self.broken = layout, kind, list[str]()

        def holds(rows: Rows, metric: Metric, operator: Operator | None) -> bool:
            return any(
                all(each is Condition.HOST_UP or each.holds(layout, target, operator) is True for each in promise.when)
                for promise in promised(metric, rows, kind, operator)
            )

        names = layout.graph.by_name
        self.operators = {
            rows: {metric: {o for o in names if holds(rows, metric, names[o])} for metric in Metric}
            for rows in (Rows.OPERATOR, Rows.TASK)
        }
        self.others = {
            rows: [metric for metric in Metric if holds(rows, metric, None)] for rows in (Rows.APPLICATION, Rows.HOST)
        }
        sinks = [operator.name for operator in layout.graph.operators if operator.kind is Kind.SINK]
        self.before_sinks = {edge.source for name in sinks for edge in layout.graph.inputs[name]}
        self.missing_rounds: dict[tuple[Rows, Metric, str], int] = {}

    def look(self, seen: Observation) -> None:
        with_records = self._operators_with_records(seen)
        if not with_records:
            return
        missing_rounds: dict[tuple[Rows, Metric, str], int] = {}
        for key in self._unknown(seen, with_records):
            missing_rounds[key] = self.missing_rounds.get(key, 0) + 1
            if missing_rounds[key] == ROUNDS:
                rows, metric, row = key
                self.broken.append(f"{metric} of {rows} {row!r} is promised and unknown until {seen.time:g} s")
        self.missing_rounds = missing_rounds

    def _operators_with_records(self, seen: Observation) -> set[str]:
        names = set(seen.operators.ids)
        if self.kind is PlantKind.UNCHAINED:
            rates = seen.operators.column(Metric.PROCESSED_RATE)
            working = {name for name, rate in zip(seen.operators.ids, rates.tolist(), strict=True) if rate > 0}
            return working | {source.name for source in self.layout.graph.sources} if working else set()
        segments = {batch.segment for batch in seen.batches if batch.records > 0}
        return {name for name in names if self.layout.stage_of[name].segment in segments}

    def _unknown(self, seen: Observation, with_records: set[str]) -> Iterator[tuple[Rows, Metric, str]]:  # noqa: C901
        for rows, metrics in self.others.items():
            if rows is Rows.APPLICATION and not with_records & self.before_sinks:
                continue
            frame = seen.frames[rows]
            for metric in metrics:
                column = frame.column(metric)
                if np.isnan(column).any():
                    for row in np.flatnonzero(np.isnan(column)).tolist():
                        name = frame.ids[row]
                        if rows is Rows.APPLICATION or seen.leases[name].state in (HostState.RUNNING, HostState.DRAINING):
                            yield rows, metric, name
        for metric, operators in self.operators[Rows.OPERATOR].items():
            column = seen.operators.column(metric)
            for row in np.flatnonzero(np.isnan(column)).tolist() if operators else ():
                if (name := seen.operators.ids[row]) in operators and name in with_records:
                    yield Rows.OPERATOR, metric, name
        for metric, operators in self.operators[Rows.TASK].items():
            column = seen.tasks.column(metric)
            for row in np.flatnonzero(np.isnan(column)).tolist() if operators else ():
                name = seen.operators.ids[int(seen.tasks.operator[row])]
                if name in operators and name in with_records:
                    yield Rows.TASK, metric, str(seen.tasks.tasks[row])


BY_QUEUE = frozenset({"btu", "queue_threshold"})  # act on queues, not on utilisation
BY_LEVEL = frozenset({"btu"})  # let records wait as long as service levels allow
BY_TARGET = frozenset({"horizon"})  # let records wait as long as the target latency allows
# remove instances until a queue grows, as published: no fixed point under constant load
CYCLING = frozenset({"btu", "queue_threshold"})
WAITING = 50.0  # records at an operator from which VISP's policies act
GROWTH = 0.05  # least growth of the backlog under overload, as part of the arrivals
VARIES = 0.1  # tolerance between measured and declared work
PATIENCES = (1.0, 3.0, 9.0)  # factors on the length of loads, tried until nothing is missed


@dataclass(frozen=True, slots=True)
class RoundState:
    """True state at a planning round.

    work: core-seconds of the waiting records. beyond: most records above a tolerated queue. offered: records due so far.
    batch: longest micro-batch (seconds). moving: hosts or instances are on their way. grew: some were requested. useless:
    more hosts are reported useless. fixed: the backlog of a fixed-width query is reported out of reach. lacks: a justified
    reason not to act.
    """

    time: float
    waiting: float
    work: float
    beyond: float
    offered: float
    batch: float
    hosts: int
    usable: int
    moving: bool
    latency: float
    grew: bool
    acted: Action | None
    lacks: bool
    useless: bool = False
    fixed: bool = False


@dataclass(frozen=True)
class CaseResult:
    """Result of a case.

    silent: silent rounds. broken: a sentence for each other failure. unpromised: promised metrics that are missing.
    refused: the policy's reason not to work there.
    """

    case: LivenessCase
    silent: int = 0
    broken: tuple[str, ...] = ()
    unpromised: tuple[str, ...] = ()
    refused: str = ""

    @property
    def holds(self) -> bool:
        """Return True if every property holds."""
        return not (self.silent or self.broken or self.unpromised)


def tried(case: LivenessCase) -> CaseResult:
    """Run a case and check every property, with longer loads if needed."""
    found = CaseResult(case)
    for patience in PATIENCES:
        found = _run_once(case, patience)
        if found.silent or found.unpromised or not found.broken:
            break
    return found


def _run_once(case: LivenessCase, patience: float) -> CaseResult:
    setup = scenario(case, patience)
    plant, policy = setup.plant(), setup.policy(case.policy)
    if reason := policy.unsupported_reason(plant.context):
        return CaseResult(case, refused=reason)
    plant.advance(setup.period)
    watch = _Watch(case, plant, setup, patience)
    checked = _CheckedPolicy(policy, setup, watch.broken)
    limit = setup.ends[-1] - setup.period
    loop = Loop(
        plant, checked, monitor=setup.period, period=setup.period, observers=[watch], limit=limit, to_the_limit=True
    )
    watch.stop = loop.stop
    loop.run()
    return CaseResult(case, watch.silent, tuple(watch.broken), tuple(watch.promised.broken))


class _CheckedPolicy(Policy):
    """Wraps a policy and checks its statements against the observation it planned for."""

    def __init__(self, policy: Policy, setup: Scenario, broken: list[str]) -> None:
        self.policy, self.setup, self.broken = policy, setup, broken

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Return the policy's plan; metrics it reports missing must be unknown, useless hosts useless."""
        plan = self.policy.plan(observation, memory)
        lies = [each for each in plan.unknown if not is_unknown(observation, each)]
        self.broken += [f"at {observation.time:g} s it says '{each}', which is known" for each in lies[:1]]
        if any(IN_VAIN in each for each in plan.remarks) and not self._exceeds_partitions(observation):
            self.broken.append(f"at {observation.time:g} s it says '{IN_VAIN}', and they could")
        if any(NO_HELP in each for each in plan.remarks) and not self._idle(observation):
            self.broken.append(f"at {observation.time:g} s it says '{NO_HELP}', and the hosts are busy")
        return plan

    def _work(self, seen: Observation) -> Mapping[str, float]:
        """Return the cores (speed 1) that the load needs by declared costs."""
        since = seen.time - self.setup.period
        rates = {
            name: (load.count(seen.time) - load.count(since)) / self.setup.period for name, load in self.setup.load.items()
        }
        return declared_cores(self.setup.layout.graph, rates, composition=seen.composition)

    def _exceeds_partitions(self, seen: Observation) -> bool:
        """Return True if the load exceeds the state partitions' capacity."""
        _, slot = seen.cores.slots(seen.working or tuple(seen.leases))
        partitions = min(seen.context.partitions.values())
        return bool(beyond_partitions(self.setup.layout, self._work(seen), slot * (1 - VARIES), partitions))

    def _idle(self, seen: Observation) -> bool:
        """Return True if the hosts have twice the cores that the load needs."""
        slots, least = seen.cores.slots(seen.usable)
        return 2 * math.fsum(self._work(seen).values()) <= slots * least


class _Watch(Observer):
    """Records the true state each round and stops the run once a property fails."""

    def __init__(self, case: LivenessCase, plant: SimulatedPlant, setup: Scenario, patience: float = 1.0) -> None:
        self.case, self.plant, self.setup, self.patience = case, plant, setup, patience
        self.levels = service_levels(plant.context) if case.policy in BY_LEVEL else None
        self.entries = {station.name: _entries(setup.layout, station.name) for station in plant.network.stations}
        ahead = _work_ahead(setup.layout.graph, setup.settings.joins)
        self.ahead = {
            name: math.fsum(ahead[each] for each in entries) / max(1, len(entries))
            for name, entries in self.entries.items()
        }
        self.stop: Callable[[], None] = lambda: None
        self.rounds: list[RoundState] = []
        self.judged = 0
        self.broken: list[str] = []
        self.silent = 0
        self.promised = PromiseMonitor(setup.layout, setup.target, PlantKind.CHAINED if case.fused else PlantKind.UNCHAINED)
        self.ends = [("high", setup.ends[1]), ("low", setup.ends[2])]
        self.committed: dict[str, float] = {}

    def observed(self, observation: Observation) -> None:
        self.seen = observation
        self.promised.look(observation)

    def decided(self, decision: Decision) -> None:
        if decision.round == self.judged:
            return None  # a repeated decision: the next round is still to come, and would count as silent
        self.judged = decision.round
        if decision.faults:
            self.broken.append(f"fault at {decision.time:g} s: {decision.faults[0].traceback}")
            return self.stop()
        self.rounds.append(self._truth(decision))
        if self.case.policy not in FIXED:
            self.silent += _silent(self.case, self.setup, self.rounds)
        if self.ends and decision.time >= self.ends[0][1] - self.setup.period:
            name, _ = self.ends.pop(0)
            self.broken += (
                [] if self.case.policy in FIXED else _provided(self.case, self.setup, name, self.rounds, self.patience)
            )
            self.broken += _fixed(self.case, self.setup, name, self.rounds)
            self.broken += [] if self.ends or self.case.policy in FIXED else _given_back(self.setup, self.rounds)
            if not self.ends or self.broken or self.silent:
                self.stop()
        return None

    def _truth(self, decision: Decision) -> RoundState:
        seen, stations = self.seen, self.plant.network.stations
        # Chained, records in service are in every stage of their query: count them where they waited.
        waits = [station.queued + station.in_service if self.entries[station.name] else 0.0 for station in stations]
        if fixed := NO_INSTANCE in decision.note:
            widened = widened_queries(seen.context)
            stage_of = self.setup.layout.stage_of
            waits = [
                wait if stage_of[station.name].segment in widened else 0.0
                for station, wait in zip(stations, waits, strict=True)
            ]
        starting = any(
            free > seen.time and not math.isfinite(done)
            for station in stations
            if station.placed
            for free, done in zip(station.crew.free.tolist(), station.crew.finish.tolist(), strict=True)
        )
        running = self._longest_batch(seen, waits) if self.case.fused else 0.0
        lately = max([running, *(round.batch for round in self.rounds[1 - ROUNDS :])])
        latency = seen.latency().value
        useless = IN_VAIN in decision.note or NO_HELP in decision.note
        tries = ON_TRIAL in decision.note or HALF_HELP in decision.note
        return RoundState(
            seen.time,
            math.fsum(waits),
            math.fsum(wait * self.ahead[station.name] for wait, station in zip(waits, stations, strict=True)),
            self._beyond(seen, waits, lately),
            math.fsum(pattern.count(seen.time) for pattern in self.setup.load.values()),
            running,
            len(seen.leases),
            len(seen.usable),
            bool(seen.coming) or starting,
            math.nan if latency is None else latency,
            any(_grows(outcome.action, seen) for outcome in decision.done),
            next((o.action for o in decision.done if not isinstance(o.action, RenewHost)), None),
            bool(decision.unknown) or useless or fixed or tries,
            useless,
            fixed,
        )

    def _longest_batch(self, seen: Observation, waits: Sequence[float]) -> float:
        self.committed |= {each.segment: max(each.end, self.committed.get(each.segment, 0.0)) for each in seen.batches}
        stage_of, stations = self.setup.layout.stage_of, self.plant.network.stations
        busy = {stage_of[station.name].segment for station, wait in zip(stations, waits, strict=True) if wait > 0}
        running = [seen.time - self.committed.get(segment, 0.0) for segment in busy]
        return max([0.0, *running, *(each.seconds for each in seen.batches)])

    def _beyond(self, seen: Observation, waits: Sequence[float], batch: float) -> float:
        """Return the most records queued beyond two micro-batches and the service level."""
        graph, since = self.setup.layout.graph, seen.time - self.setup.period
        rates = {
            name: (pattern.count(seen.time) - pattern.count(since)) / self.setup.period
            for name, pattern in self.setup.load.items()
        }
        emitted = {o.name: o.alternates[0].selectivity or 1.0 for o in graph.operators if o.alternates}
        arriving = offered_rates(graph, rates, emitted)
        if self.case.policy in BY_TARGET:
            into = [sum(arriving[name] for name in self.entries[station.name]) for station in self.plant.network.stations]
            seconds = math.fsum(wait / rate for wait, rate in zip(waits, into, strict=True) if rate > 0)
            return (seconds - _may_wait(self.case, self.setup) - 2 * batch) * math.fsum(rates.values())
        levels = dict.fromkeys(graph.by_name, 0.0) if self.levels is None else self.levels
        return max(
            (
                wait - sum(arriving[name] for name in self.entries[station.name]) * (levels[station.name] + 2 * batch)
                for station, wait in zip(self.plant.network.stations, waits, strict=True)
                if station.name in levels
            ),
            default=0.0,
        )


def _may_wait(case: LivenessCase, setup: Scenario) -> float:
    """Return the seconds for which records may wait."""
    promised = math.fsum(operator.max_duration or 0.0 for operator in setup.layout.graph.operators)
    return setup.target or (promised if case.policy in BY_TARGET else 0.0) or max(10.0, 2 * setup.settings.monitor)


def _entries(layout: Layout, name: str) -> list[str]:
    """Return the operators whose input waits at a stage (chained: the first)."""
    segment = next(each for each in layout.segments if each.name == layout.stage_of[name].segment)
    if layout.unchained:
        return [name]
    if segment.stages[0].name != name:
        return []
    sources = [each for each in segment.operators if layout.graph.by_name[each].kind is Kind.SOURCE]
    return [*sources, *dict.fromkeys(edge.target for edge in segment.inputs)]


def _work_ahead(graph: Graph, joins: Collection[str]) -> Mapping[str, float]:
    """Return core-seconds that a record needs from each operator on; a join finishes one of two."""
    found: dict[str, float] = {}
    for operator in (graph.by_name[name] for name in reversed(graph.order)):
        chosen = operator.alternates[0] if operator.alternates else None
        later = math.fsum(found[edge.target] for edge in graph.outputs[operator.name])
        emitted = 1.0 if chosen is None or chosen.selectivity is None else chosen.selectivity
        part = 1 / len(graph.inputs[operator.name]) if operator.name in joins else 1.0
        found[operator.name] = part * ((chosen.cost or 0.0 if chosen else 0.0) + emitted * later)
    return found


def _grows(action: Action, seen: Observation) -> bool:
    """Return True if an action gives work more room."""
    match action:
        case SetParallelism(operator, instances):
            known = seen.composition.parallelism.get(operator, seen.operators.value(operator, Metric.PARALLELISM))
            return not instances <= known
        case MoveTask(task):
            return task.operator not in seen.context.scalable
    return isinstance(action, LeaseHost | CancelDrain)


def _silent(case: LivenessCase, setup: Scenario, rounds: Sequence[RoundState]) -> bool:
    """Return True if the last round is silent under sustained overload."""
    now = rounds[-1]
    times = [round.time for round in rounds]
    back = bisect_right(times, now.time - ROUNDS * setup.own)
    length = max([setup.own, *(round.batch for round in rounds[back:])])
    if now.time - ROUNDS * length < times[0] - 1e-6:
        return False
    marks = [rounds[bisect_right(times, now.time - n * length + 1e-6) - 1] for n in range(ROUNDS, -1, -1)]
    grows = all(
        after.waiting - before.waiting > GROWTH * (after.offered - before.offered) > 0 and after.work > before.work
        for before, after in pairwise(marks)
    )
    if not grows or now.hosts >= setup.max_hosts:
        return False
    if not now.beyond > 0 or (case.policy in BY_QUEUE and not all(mark.beyond > WAITING for mark in marks[1:])):
        return False
    lately = rounds[times.index(marks[0].time) :]
    return not (now.lacks or any(round.grew or round.moving for round in lately))


def _provided(
    case: LivenessCase, setup: Scenario, name: str, rounds: Sequence[RoundState], patience: float
) -> Iterator[str]:
    """Check that capacity suffices by the end of a constant load, or that more hosts are useless.

    It suffices if the backlog falls or is not late, and latency is in its level; for cycling policies in one late round.
    """
    if any(each.useless for each in rounds[-QUIET:]):
        return
    tail = rounds[-round(QUIET * patience) :]
    rate = (tail[-1].offered - tail[0].offered) / (tail[-1].time - tail[0].time)
    allowed = max(WAITING, rate * _may_wait(case, setup))
    judged = tail if case.policy in CYCLING else tail[-1:]
    if all(each.waiting > max(allowed, tail[0].waiting * 0.99) for each in judged):
        yield (
            f"at the end of the {name} load {tail[-1].waiting:,.0f} records wait, and no fewer than {len(tail)} rounds "
            f"before: {tail[-1].usable} hosts"
        )
    if setup.target is None or any(each.fixed for each in rounds[-QUIET:]):
        return
    if all(each.latency > setup.target and each.waiting <= rate * setup.target / 4 for each in judged):
        yield f"at the end of the {name} load latency is {tail[-1].latency:.1f} s, the target {setup.target:.1f} s"


def _given_back(setup: Scenario, rounds: Sequence[RoundState]) -> Iterator[str]:
    most = max(round.usable for round in rounds)
    last = rounds[-1]
    if most >= setup.hosts + 3 and last.hosts >= most:
        yield f"{last.hosts} hosts at the end of the low load, as many as ever; {setup.hosts} at the start"


def _fixed(case: LivenessCase, setup: Scenario, name: str, rounds: Sequence[RoundState]) -> Iterator[str]:
    tail = [round for round in rounds if round.time > rounds[-1].time - QUIET * setup.own]
    acting = [(round.time, type(round.acted).__name__) for round in tail if round.acted is not None]
    if acting and case.policy not in CYCLING and tail[-1].waiting < WAITING + setup.rates[1] * 2:
        (when, what) = acting[0]
        yield f"at the end of the {name} load it still acts: {what} at {when:g} s, in {len(acting)} rounds"
