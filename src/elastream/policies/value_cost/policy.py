"""Value against cost: which alternates run on which hosts, for the most value at the least money at a share of the
throughput.

From "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), chapter 4. A round is the same
for all policies that search such plans: read the problem, search, enact. This module has the round and the two greedy
policies; `elastream.policies.value_cost` has what they search with.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from elastream.core.action import Action, CancelDrain, DrainHost, ReleaseHost, SetParallelism, SwitchAlternate
from elastream.core.decision import Unknown
from elastream.core.frames import Floats, Integers
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.core.qos import live_edges, rates_over
from elastream.core.task_id import TaskId
from elastream.core.wording import at_most
from elastream.dataflow.stages import Unit
from elastream.errors import InputError
from elastream.policies.common.alternates import SAMPLES
from elastream.policies.common.billing import due_back
from elastream.policies.common.chained import thread_count
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import source_sum, tasks_on
from elastream.policies.common.placement import balance
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.value_cost.assembly import Assembly
from elastream.policies.value_cost.greedy import adapted, better, deployed, money_of, with_option
from elastream.policies.value_cost.packing import HOUR, rate_of
from elastream.policies.value_cost.problem import (
    Conditions,
    Deployment,
    Goal,
    Option,
    Over,
    Problem,
    capacities,
    limits,
    score,
    throughput,
    value_of,
)
from elastream.policies.value_cost.reading import KnownWork, Situation, read
from elastream.policies.value_cost.sharded import adapted_apart
from elastream.units import ROUNDING


def missed(problem: Problem, wanted: Deployment, conditions: Conditions) -> tuple[str, ...]:
    """A sentence on the throughput that `wanted` does not reach; none where it is within the tolerance."""
    found, goal = score(problem, wanted, conditions), problem.goal
    if found.feasible(goal):
        return ()
    lacking = _lacking(problem, wanted, conditions)
    said = f"relative throughput {found.mean:.2f} planned, {goal.throughput - found.mean:.2f} below the goal"
    if not lacking.any():
        return (f"{said}: links between hosts let no more through",)
    total = float(lacking.max() if problem.shared else lacking.sum())
    said, why = f"{said}, for want of {total:.3g} cores of speed 1", _why(problem, wanted, lacking)
    if not why and len(wanted.hosts) >= problem.max_hosts:
        return (f"{at_most(problem.max_hosts)}, and {said}",)
    return (said + why,)


def loss(problem: Problem, wanted: Deployment, conditions: Conditions) -> tuple[str, ...]:
    """A sentence on hosts that cost more than the value of `wanted` is worth; none where there is a profit."""
    line, value = problem.line, score(problem, wanted, conditions).value
    even = (line.at_highest + (value - line.highest) / line.sigma) * HOUR / problem.goal.period
    hourly = math.fsum([rate_of(host.type) for host in wanted.hosts])
    if hourly <= even * (1 + ROUNDING):
        return ()
    return (f"at a loss: the hosts cost {hourly:.3g} an hour, and a value of {value:.2f} breaks even at {even:.3g}",)


def _lacking(problem: Problem, wanted: Deployment, conditions: Conditions) -> Floats:
    """Cores of speed 1 that each operator lacks to pass on as much as the goal says; where they are shared, all
    together."""
    capacity = capacities(problem, wanted, conditions)
    flows = throughput(problem, wanted.active, capacity, conditions, limits(problem, wanted, conditions))
    need = problem.goal.throughput * (flows.possible * problem.costs(wanted.active)).mean(axis=0)
    if problem.shared:
        need = np.full_like(need, need.sum())
    found: Floats = np.maximum(need - capacity.mean(axis=0), 0.0)
    return np.where(found > ROUNDING * np.maximum(need, 1.0), found, 0.0)


def _why(problem: Problem, wanted: Deployment, lacking: Floats) -> str:
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
    """Rows of the operators that are to run their next better option, on hosts leased for it; and what the others have
    lost.

    lost: by operator, value that its option has cost since it runs, in parts of the mean value of the period. pace:
    seconds since that was said. An option is better where its value is worth the cores that it needs in the long run; it
    is bought for an hour.
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
    observation: Observation, problem: Problem, wanted: Deployment, *, pace: float, why: str = "as planned"
) -> tuple[Action, ...]:
    """Actions that make the observed plan into `wanted`; none where it is already, or is on its way.

    Hosts of `wanted` with a name are those leased; one without is leased now, whatever its `since`: leave out what is not
    due yet. A leased host that is not wanted goes when what is paid of it ends before the next round, `pace` seconds later;
    until then it stays, without instances. An instance moves to a host that is up: what is to move to one that starts does
    so in a later round. why: what is said of each action.
    """
    draft = Draft(observation)
    for row, option in enumerate(wanted.active):
        operator, name = problem.operators[row], problem.options[row][option].name
        if name and observation.composition.alternate(observation.context.graph.by_name[operator]).name != name:
            draft.do(SwitchAlternate(operator, name, why))
    return (_Shared if problem.shared else _Apart)(draft, problem, wanted, pace, why).actions()


class _Enacting:
    """Common to both kinds of plant. kept: names of the leased hosts that stay."""

    def __init__(self, draft: Draft, problem: Problem, wanted: Deployment, pace: float, why: str) -> None:
        self.draft, self.problem, self.wanted, self.pace, self.why = draft, problem, wanted, pace, why
        self.observation = draft.observation
        self.kept = {host.name for host in wanted.hosts if host.name}

    def _going(self) -> list[str]:
        """Hosts that are up, are not wanted, and of which what is paid ends; those that cost least to empty first."""
        leases, now = self.observation.leases, self.observation.time
        found = [
            host for host in self.observation.usable if host not in self.kept and due_back(leases[host], now, self.pace)
        ]
        return sorted(found, key=lambda host: (tasks_on(self.observation, host), leases[host].remaining(now)))


class _Apart(_Enacting):
    """Instances hold cores of single hosts."""

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
            lacking.sort(key=lambda row: not draft.ready[row])  # what moves goes to those that are up
            moved = min(len(surplus), len(lacking))
            moves += zip(surplus[:moved], lacking[:moved], strict=True)
            removals += surplus[moved:]
            # Those of a lost host wait for room, and are placed by the plant.
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
        """Instances by host and unit, in the draft's order, with the hosts leased that are to be.

        No operator is left without an instance, and one whose instances are fixed keeps their number.
        """
        draft, problem = self.draft, self.problem
        found: list[tuple[int, int]] = []
        for number, host in enumerate(self.wanted.hosts):
            if host.name in draft.leases:
                found.append((draft.row(host.name), number))
            elif not host.name and draft.may_lease:
                found.append((draft.row(draft.lease(host.type, self.why)), number))
        target = np.zeros_like(draft.counts)
        for unit in draft.units:
            column, row = draft.column[unit.name], problem.row[unit.name]
            for at, number in found:
                target[at, column] = self.wanted.instances[number, row]
            here = draft.counts[:, column]
            if problem.fixed[row] and target[:, column].sum() != here.sum():
                target[:, column] = here
            if not target[:, column].any() and here.any():
                target[int(np.argmax(here)), column] = 1
        return target

    def _last(self, unit: Unit, row: int, count: int) -> Sequence[TaskId]:
        """The highest numbered instances of `unit` on a host."""
        here = [task for task in self.draft.tasks_on(self.draft.hosts[row]) if self.draft.unit_of(task) is unit]
        return sorted(here, key=lambda task: -task.index)[:count]

    def _move(self, moves: list[tuple[TaskId, int]]) -> None:
        """Make the moves that there is room for, as often as others make room; those of a ring stay."""
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
        going = [host for host in self._going() if not draft.counts[draft.row(host)].any()]
        most = max(0, len(draft.hosts) - max(1, self.problem.min_hosts))
        return [ReleaseHost(host, "not needed, and what is paid of it ends") for host in going[:most]]


class _Shared(_Enacting):
    """Tasks take turns on the slots of all hosts (Spark): the parallelism of stages follows the slots."""

    def actions(self) -> tuple[Action, ...]:
        draft, observation = self.draft, self.observation
        leases = observation.leases
        draining = [host for host, lease in leases.items() if lease.state is HostState.DRAINING]
        for host in self.wanted.hosts:
            if host.name:
                continue
            again = next((name for name in draining if leases[name].type.name == host.type.name), None)
            if again is not None:
                draining.remove(again)
                draft.do(CancelDrain(again, self.why))
            elif draft.may_lease:
                draft.lease(host.type, self.why)
        for name in draining:
            if not tasks_on(observation, name):
                draft.do(ReleaseHost(name, "it holds no more tasks"))
        going = self._drains() if not draining and len(draft.hosts) == len(draft.observation.usable) else []
        draft.actions += going
        draft.actions += [action for name in sorted(observation.context.scalable) for action in self._widened(name, going)]
        moves = [] if going or draining else balance(observation)
        return (*draft.plan, *moves)

    def _drains(self) -> list[Action]:
        """Drains of hosts that are not wanted, half of those there at most: their tasks move to the others."""
        usable = self.observation.usable
        most = min(len(usable) // 2, len(usable) - max(1, self.problem.min_hosts))
        return [DrainHost(host, "not needed, and what is paid of it ends") for host in self._going()[: max(0, most)]]

    def _widened(self, operator: str, going: Sequence[Action]) -> list[Action]:
        """The tasks of a stage, one a slot; or the threads of an operator that waits, as many as are occupied."""
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
            wanted = thread_count(observation, operator, busy * max(1.0, due / done), TARGET_UTILISATION, None)
        else:
            left = {each.host for each in going if isinstance(each, DrainHost)}
            leases = observation.leases
            wanted = sum(leases[host].type.width for host in observation.usable if host not in left)
        return [SetParallelism(operator, wanted, why=self.why)] if wanted and wanted != now else []


SHORTEST = 1.0
"""Seconds between two rounds, at least: a run observes once a second."""


@dataclass(frozen=True)
class Kept:
    """What such a policy remembers of a run. round: number of the next one that searches. known: of `read`. time: of the
    last round, NaN before it. own: what the search keeps."""

    round: int = 0
    known: KnownWork = field(default_factory=KnownWork)
    time: float = math.nan
    own: Any = None


@dataclass(frozen=True)
class Asked:
    """What a search is given. read: the problem, the plan in force, and conditions that last. round: 0 in the first that
    searches. alternates, resources: whether it is time for either stage. pace: seconds until the next round. due, soon:
    hosts whose paid time ends, see `_ending`. priced: whether break-even costs were given. own: of the last answer."""

    observation: Observation
    read: Situation
    round: int
    alternates: bool
    resources: bool
    pace: float
    due: frozenset[str]
    soon: frozenset[str]
    priced: bool
    own: Any = None


@dataclass(frozen=True)
class Answer:
    """What a search found. wanted: the plan to be enacted. why: what is said of each action. own: given back in the next
    round. remarks, unknown: for the round's plan."""

    wanted: Deployment
    why: str
    own: Any = None
    remarks: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True)
class ValueCost(Policy):
    """What all policies of value against cost share; each has a `search`.

    throughput, tolerance: relative throughput that is to hold, what waits counted, and by how much it may be off (thesis:
    0.8, 0.05). break_even_best, break_even_worst: money an hour at which the highest and the lowest value of the dataflow
    break even; None: what the work of the first records says, see `scheduling.reading`. profit_period: seconds over which
    profit is taken (thesis: 12 h). over: operators whose value counts, `dynamic` ones or `all`. alternates, resources:
    every how many rounds alternates and hosts are planned, these in the last of theirs: at 2 and 2 they take turns. The
    thesis gives no numbers: by default both in each round, alternates first, since nothing is gained by waiting where they
    do not suffice. instant: seconds within which what
    waits is to be worked off; None: the time between rounds, at least the start of a host, and at least the target
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
    whole: ClassVar[bool] = True
    """Whether a search needs all that a plan depends on; else it leaves alone what it does not know."""

    def __post_init__(self) -> None:
        for name in ("alternates", "resources"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 1 round or more")
        if self.instant is not None and not 0 < self.instant < math.inf:
            raise InputError(f"instant is {self.instant:g}; it must be above 0 seconds and end")
        _ = self.goal  # refuses what nothing can be reached with

    @property
    def goal(self) -> Goal:
        """What is wanted."""
        return Goal(
            self.throughput, self.tolerance, self.break_even_best, self.break_even_worst, self.profit_period, self.over
        )

    def search(self, asked: Asked) -> Answer:
        """The plan to enact; each policy has its own."""
        raise NotImplementedError

    def plan(self, observation: Observation, memory: Any = None) -> Plan:
        """Read what there is, search, and enact what was found. memory: a `Kept`."""
        kept = memory if isinstance(memory, Kept) else Kept()
        if not observation.context.graph.operators:  # no query runs: there is nothing to weigh
            return Plan(memory=kept)
        pace = _pace(observation, kept.time)
        found = read(observation, self.goal, self._instant(observation, pace), kept.known)
        after = replace(kept, known=found.known, time=observation.time)
        if self.whole and not found.decidable:
            return Plan(memory=after, unknown=found.unknown)
        # Not both "at the same time interval" (p. 84) where either has several: hosts in the last of theirs.
        resources = kept.round % self.resources == self.resources - 1
        due, soon = _ending(observation, pace * self.resources)
        alternates = kept.round % self.alternates == 0
        priced = self.break_even_best is not None
        answer = self.search(
            Asked(observation, found, kept.round, alternates, resources, pace, due, soon, priced, kept.own)
        )
        return Plan(
            enacted(observation, found.problem, answer.wanted, pace=pace, why=answer.why),
            replace(after, round=kept.round + 1, own=answer.own),
            remarks=answer.remarks,
            unknown=answer.unknown,
        )

    def unsupported_reason(self, context: Context) -> str | None:
        """Return why it can do nothing, or None."""
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
    """Seconds between two rounds: since the last; before it, since the run began."""
    return max(observation.time - (last if observation.time > last else 0.0), SHORTEST)


def _ending(observation: Observation, pace: float) -> tuple[frozenset[str], frozenset[str]]:
    """Hosts whose paid time ends before the next round, `pace` seconds later; and those for which another that
    is leased now is up by the last round before theirs ends, or that are paid by shorter units."""
    leases, now = observation.leases, observation.time
    starts = max((kind.start for kind in observation.context.host_types.values()), default=0.0)
    ahead = pace * math.ceil(starts / pace)
    due = frozenset(host for host, lease in leases.items() if due_back(lease, now, pace))
    soon = frozenset(
        host
        for host, lease in leases.items()
        if (due_back(lease, now, pace + ahead) and host not in due) or lease.type.billing.unit <= pace + ahead
    )
    return due, soon


@dataclass(frozen=True)
class Centralised(ValueCost):
    """CE: one scheduler that knows all operators, an alternate and a core at a time (thesis, 4.8: Algorithms 3 and 4).

    In its first round each operator comes to run the alternate of the most value for its cost, its successors' costs
    counted. Later, where the throughput is below the goal: alternates that need less, if the hosts there are reach the
    goal with them; else cores for the operators that hold the others up, on hosts with room or new ones of the types that
    cost least. Above the goal: alternates of more value, if these hosts carry them; else fewer instances. A host goes
    when its paid time ends and the others have room for what is on it. Where tasks share cores (Spark), these are
    filled to the target utilisation, so that batches stay short.
    """

    name: ClassVar[str] = "ce"

    def search(self, asked: Asked) -> Answer:
        """Algorithm 3 in the first round, Algorithm 4 in the others."""
        problem, conditions = asked.read.problem, asked.read.conditions
        begun = deployed(problem, conditions, asked.read.deployment) if not asked.round else asked.read.deployment
        bought, lost = overdue(problem, begun, conditions, asked.own or {}, asked.pace if asked.round else 0.0)
        wanted = adapted(
            problem,
            begun,
            conditions,
            alternates=asked.alternates and asked.round > 0,
            resources=asked.resources,
            due=asked.due,
            soon=asked.soon,
            bought=bought if asked.resources else (),
            pace=asked.pace,
        )
        return answered(asked, wanted, lost)


def answered(asked: Asked, wanted: Deployment, own: Any = None) -> Answer:
    """The answer of a search that knows all: with what the plan comes to, and by how much it misses the goal."""
    problem, conditions = asked.read.problem, asked.read.conditions
    before, then = (score(problem, each, conditions) for each in (asked.read.deployment, wanted))
    why = f"relative throughput {before.mean:.2f}, {then.mean:.2f} as planned"
    if abs(then.value - before.value) >= 0.005:
        why += f"; value {before.value:.2f}, then {then.value:.2f}"
    remarks = missed(problem, wanted, conditions) if asked.resources else ()
    if asked.priced:
        remarks += loss(problem, wanted, conditions)
    return Answer(wanted, why, own, remarks, asked.read.unknown)


@dataclass(frozen=True)
class Sharded(ValueCost):
    """SH: a scheduler an operator, none of which knows of the others (thesis, 4.8).

    As `Centralised`, but each operator sees only what reaches it and waits for it, counts its own costs only, and nothing
    is repacked: hosts are of the largest type.
    """

    name: ClassVar[str] = "sh"
    whole: ClassVar[bool] = False

    def search(self, asked: Asked) -> Answer:
        """Algorithms 3 and 4 of each operator by itself; the first, in the first round that knows its rate and cost."""
        problem, observation = asked.read.problem, asked.observation
        arriving = _arriving(asked)
        begun: frozenset[str] = asked.own or frozenset()
        first = [row for row, name in enumerate(problem.operators) if name not in begun and not math.isnan(arriving[row])]
        wanted = adapted_apart(
            problem,
            asked.read.deployment,
            asked.read.conditions,
            arriving,
            first=first,
            alternates=asked.alternates,
            resources=asked.resources,
        )
        rates = tuple(
            Unknown(Metric.ARRIVAL_RATE, Rows.OPERATOR, name, "cannot plan")
            for row, (name, options) in enumerate(_each(problem))
            if options[0].name
            and math.isnan(arriving[row])
            and math.isnan(observation.operators.value(name, Metric.ARRIVAL_RATE))
        )
        costs = tuple(each for each in asked.read.unknown if each.metric is not Metric.ARRIVAL_RATE)
        own = begun | {problem.operators[row] for row in first}
        return Answer(wanted, "by its operator's own throughput", own, unknown=(*rates, *costs))


def _arriving(asked: Asked) -> Floats:
    """Records/s that reach each operator, mean of its newest samples; NaN where that, or the cost of what runs, is unknown.

    Fused operators are measured as their stage: what reaches one of them follows from what reaches the first.
    """
    observation, problem = asked.observation, asked.read.problem
    rates = {name: _newest(observation, name) for name in problem.operators}
    if problem.shared:
        graph, layout = observation.context.graph, observation.context.layout
        emitted = dict(zip(problem.operators, problem.selectivities(asked.read.deployment.active).tolist(), strict=True))
        live = live_edges(graph, observation.composition)
        for stage in layout.stages:
            within = rates_over(graph, live, {stage.name: rates[stage.name]}, emitted)
            rates |= {name: within[name] for name in stage.operators if math.isnan(rates[name])}
    return np.array([rates[name] if options[0].name else math.nan for name, options in _each(problem)])


def _newest(observation: Observation, name: str) -> float:
    _, rates = observation.series(name, Metric.ARRIVAL_RATE, SAMPLES)
    known = rates[~np.isnan(rates)]
    return float(known.mean()) if known.size else math.nan


def _each(problem: Problem) -> Iterator[tuple[str, tuple[Option, ...]]]:
    """Each operator with its options."""
    return zip(problem.operators, problem.options, strict=True)
