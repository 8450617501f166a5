"""Policies that weigh value against cost: the round, and the greedy CE and SH.

After "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), chapter 4.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from elastream.core.action import Action, CancelDrain, DrainHost, ReleaseHost, SetParallelism, SwitchAlternate
from elastream.core.decision import Unknown
from elastream.core.frames import Floats, Integers
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.qos import live_edges, rates_over
from elastream.core.task_id import TaskId
from elastream.core.wording import at_most
from elastream.dataflow.stages import Unit
from elastream.errors import InputError
from elastream.policies.common.alternates import recent_rate
from elastream.policies.common.chained import thread_count
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import due_back, emptied, source_sum, tasks_on
from elastream.policies.common.placement import balance
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.value_cost.greedy import adapted, adapted_apart, better, deployed, money_of, with_option
from elastream.policies.value_cost.problem import (
    HOUR,
    Conditions,
    Deployment,
    Goal,
    Option,
    Over,
    Problem,
    capacities,
    limits,
    rate_of,
    score,
    throughput,
    value_of,
)
from elastream.policies.value_cost.reading import Situation, WorkHistory, read
from elastream.policies.value_cost.steps import Assembly
from elastream.units import ROUNDING


def missed(problem: Problem, deployment: Deployment, conditions: Conditions) -> tuple[str, ...]:
    predicted, goal = score(problem, deployment, conditions), problem.goal
    if predicted.feasible(goal):
        return ()
    lacking = _lacking(problem, deployment, conditions)
    message = f"relative throughput {predicted.mean:.2f} planned, {goal.throughput - predicted.mean:.2f} below the goal"
    if not lacking.any():
        return (f"{message}: links between hosts let no more through",)
    total = float(lacking.max() if problem.shared else lacking.sum())
    message, why = f"{message}, for want of {total:.3g} cores of speed 1", _cause(problem, lacking)
    if not why and len(deployment.hosts) >= problem.max_hosts:
        return (f"{at_most(problem.max_hosts)}, and {message}",)
    return (message + why,)


def loss(problem: Problem, deployment: Deployment, conditions: Conditions) -> tuple[str, ...]:
    line, value = problem.line, score(problem, deployment, conditions).value
    even = (line.at_highest + (value - line.highest) / line.sigma) * HOUR / problem.goal.period
    hourly = math.fsum([rate_of(host.type) for host in deployment.hosts])
    if hourly <= even * (1 + ROUNDING):
        return ()
    return (f"at a loss: the hosts cost {hourly:.3g} an hour, and a value of {value:.2f} breaks even at {even:.3g}",)


def _lacking(problem: Problem, deployment: Deployment, conditions: Conditions) -> Floats:
    """Return the cores of speed 1 that each operator lacks for the goal; with shared cores their sum."""
    capacity = capacities(problem, deployment, conditions)
    flows = throughput(problem, deployment.active, capacity, conditions, limits(problem, deployment, conditions))
    need = problem.goal.throughput * (flows.possible * problem.costs(deployment.active)).mean(axis=0)
    if problem.shared:
        need = np.full_like(need, need.sum())
    lacking: Floats = np.maximum(need - capacity.mean(axis=0), 0.0)
    return np.where(lacking > ROUNDING * np.maximum(need, 1.0), lacking, 0.0)


def _cause(problem: Problem, lacking: Floats) -> str:
    row = int(np.argmax(lacking))
    name, cores, memory = problem.operators[row], float(problem.cores[row]), float(problem.memory[row])
    if not problem.types:
        return ": there is no type of host to lease"
    holding = [kind for kind in problem.types if kind.cores >= cores - ROUNDING and kind.memory >= memory - ROUNDING]
    if problem.placed[row] and not holding:
        return f": no type of host has the {cores:g} cores and {memory:g} MB that an instance of {name!r} needs"
    if problem.fixed[row]:
        return f": the number of instances of {name!r} cannot be changed"
    return ""


def overdue(
    problem: Problem, deployment: Deployment, conditions: Conditions, lost: Mapping[str, float], pace: float
) -> tuple[frozenset[int], Mapping[str, float]]:
    """Return operators whose better option pays off on new hosts, and the value that the others lost so far.

    An option is bought once the lost value pays for an hour of its hosts.

    Args:
        lost: Value lost by each current option (share of the period's mean value).
        pace: Time since the last round (s).
    """
    assembly, due, after = Assembly(problem, deployment, conditions), set[int](), dict[str, float]()
    for row, name in enumerate(problem.operators):
        option = better(assembly, row) if len(problem.options[row]) > 1 else None
        if option is None:
            continue
        gain = value_of(problem, with_option(assembly.active, row, option)) - value_of(problem, assembly.active)
        hourly = problem.line.sigma * max(0.0, -money_of(assembly, row, option))
        if gain <= hourly * problem.goal.period / HOUR:
            continue
        after[name] = lost.get(name, 0.0) + gain * pace / problem.goal.period
        if after[name] >= hourly:
            due.add(row)
            del after[name]
    return frozenset(due), after


def enacted(
    observation: Observation, problem: Problem, deployment: Deployment, *, pace: float, why: str = "as planned"
) -> tuple[Action, ...]:
    """Return the actions that turn the observed plan into `deployment`.

    Unnamed hosts are leased now. Surplus hosts are released when their paid time ends before the next round. Instances move
    only to hosts that are up.
    """
    draft = Draft(observation)
    for row, option in enumerate(deployment.active):
        operator, name = problem.operators[row], problem.options[row][option].name
        if name and observation.composition.alternate(observation.context.graph.by_name[operator]).name != name:
            draft.do(SwitchAlternate(operator, name, why))
    return (_Shared if problem.shared else _Unchained)(draft, problem, deployment, pace, why).actions()


class _Enacting:
    drains: ClassVar[bool] = False  # a host is drained one round and released the next

    def __init__(self, draft: Draft, problem: Problem, deployment: Deployment, pace: float, why: str) -> None:
        self.draft, self.problem, self.deployment, self.pace, self.why = draft, problem, deployment, pace, why
        self.observation = draft.observation
        self.staying = {host.name for host in deployment.hosts if host.name}

    def _expiring(self) -> list[str]:
        leases, now, empties = self.observation.leases, self.observation.time, self.pace * self.drains
        candidates = [host for host in self.observation.usable if host not in self.staying]
        hosts = [host for host in candidates if due_back(leases[host], now, self.pace, empties)]
        return sorted(hosts, key=lambda host: (tasks_on(self.observation, host), leases[host].remaining(now)))


class _Unchained(_Enacting):
    def actions(self) -> tuple[Action, ...]:
        draft, target = self.draft, self._target()
        removals: list[TaskId] = []
        moves: list[tuple[TaskId, int]] = []
        adds: list[tuple[Unit, int]] = []
        for unit in draft.units:
            column = draft.column[unit.name]
            if not self.problem.placed[self.problem.row[unit.name]]:
                continue
            change = target[:, column] - draft.counts[:, column]
            surplus = [task for row in np.flatnonzero(change < 0).tolist() for task in self._last(unit, row, -change[row])]
            lacking = [row for row in np.flatnonzero(change > 0).tolist() for _ in range(change[row])]
            lacking.sort(key=lambda row: not draft.ready[row])  # instances move only to hosts that are up
            moved = min(len(surplus), len(lacking))
            moves += zip(surplus[:moved], lacking[:moved], strict=True)
            removals += surplus[moved:]
            # Instances of a lost host wait for room; the plant places them.
            waiting = draft.instances[unit.name] - int(draft.counts[:, column].sum())
            adds += [(unit, row) for row in lacking[moved : max(moved, len(lacking) - max(0, waiting))]]
        for task in removals:
            draft.remove(task, self.why)
        self._move([(task, row) for task, row in moves if draft.ready[row]])
        for unit, row in adds:
            if draft.feasibility(unit)[row] >= 1:
                draft.add(unit, draft.hosts[row], self.why)
        return (*draft.plan, *self._releases())

    def _target(self) -> Integers:
        draft, problem = self.draft, self.problem
        rows: list[tuple[int, int]] = []
        for number, host in enumerate(self.deployment.hosts):
            if host.name in draft.leases:
                rows.append((draft.row(host.name), number))
            elif not host.name and draft.may_lease:
                rows.append((draft.row(draft.lease(host.type, self.why)), number))
        target = np.zeros_like(draft.counts)
        for unit in draft.units:
            column, row = draft.column[unit.name], problem.row[unit.name]
            for at, number in rows:
                target[at, column] = self.deployment.instances[number, row]
            here = draft.counts[:, column]
            if problem.fixed[row] and target[:, column].sum() != here.sum():
                target[:, column] = here
            if not target[:, column].any() and here.any():
                target[int(np.argmax(here)), column] = 1
        return target

    def _last(self, unit: Unit, row: int, count: int) -> Sequence[TaskId]:
        here = [task for task in self.draft.tasks_on(self.draft.hosts[row]) if self.draft.unit_of(task) is unit]
        return sorted(here, key=lambda task: -task.index)[:count]

    def _move(self, moves: list[tuple[TaskId, int]]) -> None:
        draft, left = self.draft, moves
        while left:
            later = []
            for task, row in left:
                if draft.feasibility(draft.unit_of(task))[row] >= 1:
                    draft.move(task, draft.hosts[row], self.why)
                else:
                    later.append((task, row))
            if len(later) == len(left):
                return
            left = later

    def _releases(self) -> list[Action]:
        draft = self.draft
        going = [host for host in self._expiring() if not draft.counts[draft.row(host)].any()]
        most = max(0, len(draft.hosts) - max(1, self.problem.min_hosts))
        return [ReleaseHost(host, "not needed, and what is paid of it ends") for host in going[:most]]


class _Shared(_Enacting):
    """Actions on plants where tasks share the slots of all hosts (Spark)."""

    drains = True

    def actions(self) -> tuple[Action, ...]:
        draft, observation = self.draft, self.observation
        leases = observation.leases
        draining = list(observation.recoverable)
        for host in self.deployment.hosts:
            if host.name:
                continue
            again = next((name for name in draining if leases[name].type.name == host.type.name), None)
            if again is not None:
                draining.remove(again)
                draft.do(CancelDrain(again, self.why))
            elif draft.may_lease:
                draft.lease(host.type, self.why)
        for action in emptied(observation):
            if action.host in draining:
                draft.do(action)
        going = self._drains() if not draining and len(draft.hosts) == len(draft.observation.usable) else []
        draft.actions += going
        draft.actions += [action for name in sorted(observation.context.scalable) for action in self._widened(name, going)]
        moves = [] if going or draining else balance(observation)
        return (*draft.plan, *moves)

    def _drains(self) -> list[Action]:
        usable = self.observation.usable
        most = min(len(usable) // 2, len(usable) - max(1, self.problem.min_hosts))
        return [DrainHost(host, "not needed, and what is paid of it ends") for host in self._expiring()[: max(0, most)]]

    def _widened(self, operator: str, going: Sequence[Action]) -> list[Action]:
        observation = self.observation
        now = observation.composition.parallelism.get(operator, math.nan)
        now = observation.operators.value(operator, Metric.PARALLELISM) if math.isnan(now) else now
        if math.isnan(now):
            return []
        if observation.context.graph.by_name[operator].waits:
            busy = observation.operators.value(operator, Metric.BUSY_CORES)
            due, done = (source_sum(observation, metric) for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
            if math.isnan(busy) or not done > 0 or math.isnan(due):
                return []
            parallelism = thread_count(observation, operator, busy * max(1.0, due / done), TARGET_UTILISATION, None)
        else:
            left = {each.host for each in going if isinstance(each, DrainHost)}
            leases = observation.leases
            parallelism = sum(leases[host].type.width for host in observation.usable if host not in left)
        return [SetParallelism(operator, parallelism, why=self.why)] if parallelism and parallelism != now else []


SHORTEST = 1.0


@dataclass(frozen=True)
class SearchMemory:
    round: int = 0  # number of the next search
    history: WorkHistory = field(default_factory=WorkHistory)  # memory of `reading.read`
    time: float = math.nan  # time of the last round; NaN before it
    own: Any = None  # memory of the search


@dataclass(frozen=True)
class SearchRequest:
    observation: Observation
    situation: Situation  # problem, plan in force, lasting conditions
    round: int  # number of this search, from 0
    alternates: bool  # alternates may switch in this round
    resources: bool  # hosts and instances may change in this round
    pace: float  # time to the next round (s)
    due: frozenset[str]  # hosts whose paid time ends before the next resource stage
    soon: frozenset[str]  # hosts to consider for replacement, see `_ending`
    priced: bool  # the user gave break-even costs
    own: Any = None  # memory of the last result


@dataclass(frozen=True)
class SearchResult:
    deployment: Deployment  # plan to enact
    why: str  # reason recorded with each action
    own: Any = None  # memory for the next search
    remarks: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True)
class ValueCost(Policy):
    """Base class of policies that weigh value against cost.

    Args:
        throughput: Target relative throughput, waiting records counted (thesis: 0.8).
        tolerance: Allowed deviation from it (thesis: 0.05).
        break_even_best: Money/h at which the highest value breaks even. None derives both from the first records' work.
        profit_period: Period over which profit counts (s; thesis: 12 h).
        over: Operators whose value counts: `dynamic` (several alternates) or `all`.
        alternates: Rounds between alternate stages. The thesis gives no number.
        resources: Rounds between resource stages; 2 and 2 take turns.
        instant: Time in which a backlog should be worked off (s). None takes the longest of round, host start and target
            latency.
    """

    throughput: float = 0.8
    tolerance: float = 0.05
    break_even_best: float | None = None
    break_even_worst: float | None = None
    profit_period: float = 12 * HOUR
    over: Over = "dynamic"
    alternates: int = 1
    resources: int = 1
    instant: float | None = None

    name: ClassVar[str] = "value against cost"
    needs: ClassVar[Needs] = frozenset({(Rows.OPERATOR, Metric.ARRIVAL_RATE)})
    # Searches need the whole problem. If False, a policy leaves unknown operators alone.
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("alternates", "resources"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 1 round or more")
        if self.instant is not None and not 0 < self.instant < math.inf:
            raise InputError(f"instant is {self.instant:g}; it must be above 0 seconds and end")
        _ = self.goal  # raises for an invalid goal

    @property
    def goal(self) -> Goal:
        return Goal(
            self.throughput, self.tolerance, self.break_even_best, self.break_even_worst, self.profit_period, self.over
        )

    def search(self, request: SearchRequest) -> SearchResult:
        """Return the plan to enact."""
        raise NotImplementedError

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        before = memory if isinstance(memory, SearchMemory) else SearchMemory()
        if not observation.context.graph.operators:  # no query runs: there is nothing to weigh
            return Plan(memory=before)
        pace = _pace(observation, before.time)
        situation = read(observation, self.goal, self._instant(observation, pace), before.history)
        after = replace(before, history=situation.history, time=observation.time)
        if self.whole and not situation.decidable:
            return Plan(memory=after, unknown=situation.unknown)
        # The two stages do not run "at the same time interval" (p. 84) if either has several rounds: hosts change in the
        # last.
        resources = before.round % self.resources == self.resources - 1
        due, soon = _ending(observation, pace * self.resources)
        alternates = before.round % self.alternates == 0
        priced = self.break_even_best is not None
        result = self.search(
            SearchRequest(observation, situation, before.round, alternates, resources, pace, due, soon, priced, before.own)
        )
        return Plan(
            enacted(observation, situation.problem, result.deployment, pace=pace, why=result.why),
            replace(after, round=before.round + 1, own=result.own),
            remarks=result.remarks,
            unknown=result.unknown,
        )

    def unsupported_reason(self, context: Context) -> str | None:
        if context.host_types:
            return None
        return (
            "it weighs value against the cost of hosts, and there is no type of host to lease: declare one with its price"
        )

    def _instant(self, observation: Observation, pace: float) -> float:
        if self.instant is not None:
            return self.instant
        starts = [kind.start for kind in observation.context.host_types.values()]
        return max(pace, observation.context.target_latency or 0.0, *starts)


def _pace(observation: Observation, last: float) -> float:
    return max(observation.time - (last if observation.time > last else 0.0), SHORTEST)


def _ending(observation: Observation, pace: float) -> tuple[frozenset[str], frozenset[str]]:
    # Consider hosts with short billing units, and hosts whose replacement, leased now, is up before their paid time ends.
    leases, now = observation.leases, observation.time
    starts = max((kind.start for kind in observation.context.host_types.values()), default=0.0)
    ahead = pace * math.ceil(starts / pace)
    empties = 0.0 if observation.context.layout.unchained else pace
    due = frozenset(host for host, lease in leases.items() if due_back(lease, now, pace, empties))
    soon = frozenset(
        host
        for host, lease in leases.items()
        if (due_back(lease, now, pace + ahead, empties) and host not in due) or lease.type.billing.unit <= pace + ahead
    )
    return due, soon


@dataclass(frozen=True)
class Centralised(ValueCost):
    """CE: one scheduler that knows all operators (thesis, 4.8: Algorithms 3 and 4).

    It starts with the alternates of the most value per cost. Below the goal it prefers cheaper alternates to more cores,
    above it alternates of more value to fewer instances. A host goes when its paid time ends and the others have room. On
    Spark, cores are filled to the target utilisation to keep batches short.
    """

    name: ClassVar[str] = "ce"

    def search(self, request: SearchRequest) -> SearchResult:
        problem, conditions = request.situation.problem, request.situation.conditions
        begun = (
            deployed(problem, conditions, request.situation.deployment)
            if not request.round
            else request.situation.deployment
        )
        bought, lost = overdue(problem, begun, conditions, request.own or {}, request.pace if request.round else 0.0)
        deployment = adapted(
            problem,
            begun,
            conditions,
            alternates=request.alternates and request.round > 0,
            resources=request.resources,
            due=request.due,
            soon=request.soon,
            bought=bought if request.resources else (),
            pace=request.pace,
        )
        return search_result(request, deployment, lost)


def search_result(request: SearchRequest, deployment: Deployment, own: Any = None) -> SearchResult:
    """Return the result: `deployment`, its predicted throughput and value, and a remark if it misses the goal."""
    problem, conditions = request.situation.problem, request.situation.conditions
    before, then = (score(problem, each, conditions) for each in (request.situation.deployment, deployment))
    why = f"relative throughput {before.mean:.2f}, {then.mean:.2f} as planned"
    if abs(then.value - before.value) >= 0.005:
        why += f"; value {before.value:.2f}, then {then.value:.2f}"
    remarks = missed(problem, deployment, conditions) if request.resources else ()
    if request.priced:
        remarks += loss(problem, deployment, conditions)
    return SearchResult(deployment, why, own, remarks, request.situation.unknown)


@dataclass(frozen=True)
class Sharded(ValueCost):
    """SH: one scheduler per operator, each with its own input, backlog and costs (thesis, 4.8).

    Nothing is repacked: all hosts are of the largest type.
    """

    name: ClassVar[str] = "sh"
    whole: ClassVar[bool] = False

    def search(self, request: SearchRequest) -> SearchResult:
        problem, observation = request.situation.problem, request.observation
        arriving = _arriving(request)
        begun: frozenset[str] = request.own or frozenset()
        first = [row for row, name in enumerate(problem.operators) if name not in begun and not math.isnan(arriving[row])]
        deployment = adapted_apart(
            problem,
            request.situation.deployment,
            request.situation.conditions,
            arriving,
            first=first,
            alternates=request.alternates,
            resources=request.resources,
        )
        rates = tuple(
            Unknown(Metric.ARRIVAL_RATE, Rows.OPERATOR, name, "cannot plan")
            for row, (name, options) in enumerate(_each(problem))
            if options[0].name
            and math.isnan(arriving[row])
            and math.isnan(observation.operators.value(name, Metric.ARRIVAL_RATE))
        )
        costs = tuple(each for each in request.situation.unknown if each.metric is not Metric.ARRIVAL_RATE)
        own = begun | {problem.operators[row] for row in first}
        return SearchResult(deployment, "by its operator's own throughput", own, unknown=(*rates, *costs))


def _arriving(request: SearchRequest) -> Floats:
    """Return the records/s that reach each operator; NaN where rate or cost is unknown."""
    # A chain is measured as one stage, so rates inside it are derived.
    observation, problem = request.observation, request.situation.problem
    rates = {name: recent_rate(observation, name) for name in problem.operators}
    if problem.shared:
        graph, layout = observation.context.graph, observation.context.layout
        emitted = dict(
            zip(problem.operators, problem.selectivities(request.situation.deployment.active).tolist(), strict=True)
        )
        live = live_edges(graph, observation.composition)
        for stage in layout.stages:
            within = rates_over(graph, live, {stage.name: rates[stage.name]}, emitted)
            rates |= {name: within[name] for name in stage.operators if math.isnan(rates[name])}
    return np.array([rates[name] if options[0].name else math.nan for name, options in _each(problem)])


def _each(problem: Problem) -> Iterator[tuple[str, tuple[Option, ...]]]:
    return zip(problem.operators, problem.options, strict=True)
