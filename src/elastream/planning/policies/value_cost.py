"""Value against cost: which alternates run on which hosts, for the most value at the least money at a share of the
throughput.

From "Adaptive and resilient stream processing on cloud infrastructure" (Kumbhare, 2016), chapter 4. A round is the same
for all policies that search such plans: read the problem, search, enact. This module has the round and the two greedy
policies; `elastream.planning.scheduling` has what they search with.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from elastream.model.errors import InputError
from elastream.model.metrics import Metric, Needs
from elastream.model.observation import Context, Floats, Observation
from elastream.model.plant import Plan, Unknown
from elastream.model.promises import Rows
from elastream.model.qos import live_edges, rates_over
from elastream.planning.algorithms.billing import due_back
from elastream.planning.algorithms.choosing import SAMPLES
from elastream.planning.scheduling.enacting import enacted
from elastream.planning.scheduling.greedy import adapted, deployed
from elastream.planning.scheduling.missing import loss, missed
from elastream.planning.scheduling.problem import HOUR, Deployment, Goal, Option, Over, Problem, score
from elastream.planning.scheduling.reading import KnownWork, Situation, read
from elastream.planning.scheduling.renting import overdue
from elastream.planning.scheduling.sharded import adapted_apart

__all__ = ["Answer", "Asked", "Centralised", "Kept", "Sharded", "ValueCost", "answered"]


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
class ValueCost:
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

    def unfit(self, context: Context) -> str:
        """Why it can do nothing; empty where it can."""
        if context.host_types:
            return ""
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
