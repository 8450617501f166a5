"""Reading of problem, plan and conditions from an observation. Missing metrics are named, not guessed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.action import SwitchAlternate
from elastream.core.decision import Unknown
from elastream.core.frames import Floats
from elastream.core.hosts import Lease
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Composition, Observation
from elastream.core.qos import application_value, live_edges, offered_rates, outputs_of
from elastream.dataflow.operators import Operator
from elastream.policies.common.alternates import CompositionWork, Costs, DynamicElement, elements, with_option
from elastream.policies.common.chained import has_equal_shares
from elastream.policies.common.draft import Draft
from elastream.policies.common.provision import TARGET_UTILISATION
from elastream.policies.value_cost.problem import (
    Conditions,
    Deployment,
    Goal,
    Host,
    Option,
    Problem,
    paid,
    rate_of,
    value_of,
)
from elastream.units import ROUNDING

# Default break-even of the highest value, as a multiple of its cost: at the cost itself no plan could make a profit.
PROFITABLE = 2.0


@dataclass(frozen=True)
class WorkHistory:
    costs: Costs = field(default_factory=dict)  # measured costs of alternates
    break_even: tuple[float, float] | None = None  # money/h of the highest and the lowest value, from the first records
    began: float = math.nan  # start of the goal's period
    time: float = math.nan  # time of the last round
    valued: float = 0.0  # value-seconds since the period began
    spent: float = 0.0  # money spent before the period


@dataclass(frozen=True)
class Situation:
    problem: Problem
    deployment: Deployment
    conditions: Conditions
    history: WorkHistory  # memory for the next `read`
    unknown: tuple[Unknown, ...]  # missing metrics with their consequences
    decidable: bool  # false if too little is known for a search


def read(observation: Observation, goal: Goal, seconds: float, history: WorkHistory | None = None) -> Situation:
    """Return the problem, the plan in force and steady conditions in instants of `seconds`.

    Costs are measured or declared; an alternate with neither cannot be chosen. If guards forbid the running alternate, the
    best allowed one counts as running.
    """
    return _Reading(observation, goal, seconds, history or WorkHistory()).read()


def deployment_of(draft: Draft, problem: Problem) -> Deployment:
    """Return the draft's plan, so that it can be scored. Closed hosts are released."""
    observation = draft.observation
    switches = {each.operator: each.alternate for each in draft.actions if isinstance(each, SwitchAlternate)}
    active = []
    for row, options in enumerate(problem.options):
        operator = observation.context.graph.by_name[problem.operators[row]]
        runs = switches.get(operator.name, observation.composition.alternate(operator).name if operator.alternates else "")
        names = [option.name for option in options]
        # An alternate that may no longer run is no option: the one of the highest value replaces it.
        active.append(names.index(runs) if runs in names else int(np.argmax([option.value for option in options])))
    rows = np.flatnonzero(~draft.closed)
    hosts = tuple(_host(draft.leases[draft.hosts[row]], float(draft.speeds[row])) for row in rows.tolist())
    instances = np.zeros((len(hosts), len(problem.operators)), dtype=np.int64)
    if not problem.shared:
        for column, unit in enumerate(draft.units):
            if problem.placed[at := problem.row[unit.name]]:
                instances[:, at] = draft.counts[rows, column]
    return Deployment(tuple(active), hosts, instances)


def _host(lease: Lease, speed: float) -> Host:
    ready = lease.ready_at()
    return Host(lease.host, lease.type, speed, lease.since, lease.since + lease.type.start if ready is None else ready)


class _Reading:
    def __init__(self, observation: Observation, goal: Goal, seconds: float, history: WorkHistory) -> None:
        self.observation, self.goal, self.seconds, self.before = observation, goal, seconds, history
        self.graph, self.composition = observation.context.graph, observation.composition
        self.shared = not observation.context.layout.unchained
        self.filled = TARGET_UTILISATION if self.shared else 1.0
        self.worked = CompositionWork(observation, history.costs)
        self.elements = {each.name: each for each in elements(observation) if not each.choice}
        self.unknown: list[Unknown] = []
        self.rates = self._rates()
        self.decidable = not self.unknown
        emitted = {each.name: self.worked.selectivity(each, self.composition) for each in self._working}
        self.arriving = offered_rates(self.graph, self.rates, emitted, self.composition)
        waiting = {name: self._queue(name) / seconds for name in self.graph.order}
        inputs = {name: waits + self.rates.get(name, 0.0) for name, waits in waiting.items()}
        self.due = offered_rates(self.graph, inputs, emitted, self.composition)

    def read(self) -> Situation:
        options = tuple(self._options(self.graph.by_name[name]) for name in self.graph.order)
        goal, break_even = self._goal()
        problem = self._problem(options, goal)
        deployment = deployment_of(Draft(self.observation), problem)
        history = replace(self._updated_history(problem, deployment), costs=self.worked.costs, break_even=break_even)
        conditions = self._conditions(history)
        return Situation(problem, deployment, conditions, history, tuple(self.unknown), self.decidable)

    @property
    def _working(self) -> list[Operator]:
        return [operator for operator in self.graph.operators if operator.alternates]

    def _report_unknown(self, metric: Metric, rows: Rows, row: str, consequence: str = "cannot plan") -> None:
        self.unknown.append(Unknown(metric, rows, row, consequence))

    def _rates(self) -> Mapping[str, float]:
        for name, rate in self.worked.rates.items():
            if math.isnan(rate):
                self._report_unknown(Metric.ARRIVAL_RATE, Rows.OPERATOR, name)
        return {name: 0.0 if math.isnan(rate) else rate for name, rate in self.worked.rates.items()}

    # -- the problem ---------------------------------------------------------------------------------------------------

    def _options(self, operator: Operator) -> tuple[Option, ...]:
        if not operator.alternates:
            return (Option("", 1.0, self.worked.ends.get(operator.name, 0.0) / self.filled if self.shared else 0.0, 1.0),)
        runs = self.composition.alternate(operator).name
        element = self.elements.get(operator.name)
        allowed = (runs,) if element is None else tuple(element.options)
        values = self._values(operator)
        options = []
        for name in [alternate.name for alternate in operator.alternates if alternate.name in allowed]:
            composition = self._with_option(element, name)
            cost = self._cost(operator, composition)
            if not math.isnan(cost):
                options.append(Option(name, values[name], cost, self.worked.selectivity(operator, composition)))
            elif name != runs:
                self._report_unknown(Metric.SERVICE_TIME, Rows.ALTERNATE, f"{operator.name}.{name}", "cannot choose it")
        if not options or (runs in allowed and runs not in [option.name for option in options]):
            self._report_unknown(Metric.SERVICE_TIME, Rows.OPERATOR, operator.name)
            self.decidable = False
            return (Option("", values[runs], 0.0, 1.0),)
        return tuple(options)

    def _with_option(self, element: DynamicElement | None, name: str) -> Composition:
        return self.composition if element is None else with_option(self.composition, element, name)

    def _cost(self, operator: Operator, composition: Composition) -> float:
        """Return the core-seconds of speed 1 to provision for a record, or NaN."""
        # With shared cores, fixed overhead is divided among the due records; the target utilisation keeps batches short.
        if self.shared and operator.waits:
            return 0.0
        cost = self.worked.cost(operator, composition)
        if math.isnan(cost) and (self.arriving[operator.name] == 0 or (self.shared and self._metered(operator))):
            return 0.0
        overhead, due = self.worked.overheads.get(operator.name, 0.0), self.due[operator.name]
        return (cost + (overhead / due if due > 0 else 0.0)) / self.filled

    def _metered(self, operator: Operator) -> bool:
        busy = self.observation.operators.column(Metric.BUSY_CORES)
        return len(operator.alternates) == 1 and bool((busy == busy).any())

    def _values(self, operator: Operator) -> Mapping[str, float]:
        declared = {alternate.name: alternate.value for alternate in operator.alternates}
        standing = self.observation.standings.get(operator.name)
        if standing is not None:
            guarded = {name: value for name, value in standing.values.items() if name in declared and not math.isnan(value)}
            declared |= guarded
        return _relative(declared)

    def _branches(self) -> tuple[float, ...]:
        branches = []
        for choice, targets in self.graph.choices.items():
            values = _relative({edge.target: edge.value for edge in self.graph.edges if edge.choice == choice})
            branches.append(values[self.composition.choices.get(choice, targets[0])])
        return tuple(branches)

    def _problem(self, options: tuple[tuple[Option, ...], ...], goal: Goal) -> Problem:
        context, order = self.observation.context, self.graph.order
        row = {name: number for number, name in enumerate(order)}
        operators = [self.graph.by_name[name] for name in order]
        live = live_edges(self.graph, self.composition)
        edges = [(row[name], row[edge.target], part) for name in order for edge, part in live[name]]
        fixed = {name for unit in context.units if not unit.scalable for name in unit.operators}
        branches = self._branches()
        counted = [each for each in operators if len(each.alternates) > (goal.over == "dynamic")]
        extremes = [self._values(each).values() for each in counted]
        bounds = [application_value([which(values) for values in extremes], branches) for which in (min, max)]
        return Problem(
            operators=order,
            options=options,
            edges=np.array([each[:2] for each in edges], dtype=np.int64).reshape(-1, 2),
            parts=np.array([part for *_, part in edges], dtype=np.float64),
            sources=np.array([row[source.name] for source in self.graph.sources], dtype=np.int64),
            outputs=np.array([row[name] for name in outputs_of(self.graph)], dtype=np.int64),
            record_bytes=np.array([math.nan if o.record_bytes is None else o.record_bytes for o in operators]),
            placed=np.array([not self.shared and bool(o.alternates) for o in operators], dtype=np.bool_),
            fixed=np.array([not self.shared and bool(o.alternates) and o.name in fixed for o in operators], dtype=np.bool_),
            cores=np.array([operator.cores for operator in operators]),
            memory=np.array([operator.memory for operator in operators]),
            dynamic=np.array([len(operator.alternates) > 1 for operator in operators], dtype=np.bool_),
            types=tuple(context.leasable.values()),
            goal=goal,
            branches=branches,
            bounds=(bounds[0], bounds[1]),
            max_hosts=context.max_hosts,
            min_hosts=context.min_hosts,
            shared=self.shared,
            equal=self._equal(),
        )

    def _equal(self) -> bool:
        """Return True if most work is in tasks with equal shares of their stage's records."""
        observation, layout = self.observation, self.observation.context.layout
        slots = sum(observation.leases[host].type.width for host in observation.usable)
        if not self.shared or not has_equal_shares(observation, slots):
            return False
        works = {each.name: self.arriving[each.name] * self._cost(each, self.composition) for each in self._working}
        placed = math.fsum([_zero_if_unknown(work) for name, work in works.items() if layout.stage_of[name].keyed])
        return 2 * placed <= math.fsum([_zero_if_unknown(work) for work in works.values()])

    # -- break-even costs ----------------------------------------------------------------------------------------------

    def _goal(self) -> tuple[Goal, tuple[float, float] | None]:
        goal, break_even = self.goal, self.before.break_even
        if goal.break_even_best is not None:
            return goal, None
        records = any(rate > 0 for rate in self.rates.values())
        if break_even is None:
            break_even = self._break_even()
        if break_even is None:
            return goal, None
        filled = replace(goal, break_even_best=break_even[0], break_even_worst=break_even[1])
        return filled, break_even if records else None

    def _break_even(self) -> tuple[float, float] | None:
        """Return the default break-even money/h of the highest and the lowest value; None if cores are free."""
        types = self.observation.context.host_types.values()
        cheapest = min((rate_of(kind) / (kind.cores * kind.speed) for kind in types), default=0.0)
        if cheapest <= 0:
            return None
        least = min(rate_of(kind) for kind in types if rate_of(kind) > 0)
        part = self.filled / TARGET_UTILISATION
        best, worst = (max(self._work(which) * part * cheapest, least) for which in (max, min))
        best *= PROFITABLE
        return best, min(worst, best / PROFITABLE)

    def _work(self, which: Callable[..., str]) -> float:
        composition = self.composition
        for operator in self._working:
            if len(operator.alternates) > 1:
                values = self._values(operator)
                chosen = which(values, key=values.__getitem__)
                composition = replace(composition, alternates={**composition.alternates, operator.name: chosen})
        emitted = {each.name: self.worked.selectivity(each, composition) for each in self._working}
        arriving = offered_rates(self.graph, self.rates, emitted, composition)
        costs = {each.name: self._cost(each, composition) for each in self._working}
        return math.fsum([arriving[name] * cost for name, cost in costs.items() if not math.isnan(cost)])

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _updated_history(self, problem: Problem, deployment: Deployment) -> WorkHistory:
        before, now = self.before, self.observation.time
        began = math.floor(now / problem.goal.period + ROUNDING) * problem.goal.period
        value = value_of(problem, deployment.active)
        if began == before.began:
            return replace(before, time=now, valued=before.valued + value * (now - before.time))
        spent = self.observation.overall(Metric.COST) if began > 0 else 0.0
        return replace(before, began=began, time=now, valued=value * (now - began), spent=_zero_if_unknown(spent))

    def _conditions(self, history: WorkHistory) -> Conditions:
        observation, now = self.observation, self.observation.time
        leased = tuple(_host(lease, observation.speeds[name]) for name, lease in observation.leases.items())
        elapsed = now - history.began
        spent = _zero_if_unknown(observation.overall(Metric.COST)) - history.spent
        here = math.fsum([paid(host, history.began, now) for host in leased])
        return Conditions(
            rates=np.array([[self.rates[source.name] for source in self.graph.sources]]),
            queues=np.array([self._queue(name) for name in self.graph.order]),
            seconds=self.seconds,
            time=now,
            bandwidth={} if self.shared else self._bandwidth(),
            began=history.began,
            value=history.valued / elapsed if elapsed > 0 else math.nan,
            leased=leased,
            paid=max(0.0, spent - here),
        )

    def _queue(self, name: str) -> float:
        """Return the records that wait at an operator; chained, the standing queue (CoDel, RFC 8289)."""
        waited = [frame.value(name, Metric.BACKLOG) for frame in self.worked.frames]
        return min((each for each in waited if not math.isnan(each)), default=0.0)

    def _bandwidth(self) -> Mapping[tuple[str, str], Floats]:
        links = self.observation.links
        bandwidths = {}
        for link, bandwidth in zip(links.ids, links.column(Metric.BANDWIDTH).tolist(), strict=True):
            if not math.isnan(bandwidth):
                source, _, target = link.partition(">")
                bandwidths[source, target] = np.array([bandwidth])
        return bandwidths


def _relative(values: Mapping[str, float]) -> Mapping[str, float]:
    highest = max(values.values())
    return {name: value / highest if highest > 0 else 0.0 for name, value in values.items()}


def _zero_if_unknown(value: float) -> float:
    return 0.0 if math.isnan(value) else value
