"""Clairvoyant lower bound of cost: the optimum of a relaxed model that knows the load (`docs/how-to/simulate.md`)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.dataflow.endpoints import DomainSignal
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Delivery, Kind
from elastream.errors import InputError
from elastream.evaluation.comparison import Bound
from elastream.evaluation.trials import MOST_HOSTS, Scene
from elastream.policies.static import Static
from elastream.simulator import SimulatedPlant
from elastream.simulator.cohorts import RATE_SLOTS
from elastream.simulator.costs import own_cost
from elastream.simulator.draws import factor, sequence
from elastream.simulator.fused import FusedNetwork
from elastream.simulator.network import QueueNetwork
from elastream.simulator.settings import Settings
from elastream.simulator.stations import ItemStation
from elastream.units import ROUNDING

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Indices: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

# Time steps of a model; a longer load has longer steps.
MOST_STEPS = 6000
# Time steps of a model of whole hosts; a longer load has fractional ones.
MOST_WHOLE_STEPS = 1500
# Time steps of a window; each window of whole hosts is solved on its own.
WINDOW_STEPS = 150
# Time steps in a target latency: the model overlooks lateness of up to a step.
STEPS_A_LATENCY = 4
# Relative gap to which windows are solved, and seconds for all of them.
GAP, SOLVE_S = 0.01, 60.0
# Relative tolerance of the solver's sums.
SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Lease:
    """Terms of a host type in the model.

    Attributes:
        capacity: Core-seconds of speed 1 that a host serves a second, at most.
        start: Least seconds from the request until a host serves.
        unit: Billing time unit (seconds).
        first: Least seconds paid, in whole units.
        rate: Price of a second.
    """

    capacity: float
    start: float
    unit: float
    first: float
    rate: float

    @classmethod
    def of(cls, kind: HostType, capacity: float, start: float) -> "Lease":
        unit = kind.billing.unit
        return cls(capacity, start, unit, unit * kind.billing.units(0.0), kind.price / unit)


@dataclass(frozen=True, slots=True)
class Problem:
    """Load and hosts of the relaxed model.

    Attributes:
        times: Arrivals, oldest first (seconds); shape (arrivals,).
        work: Core-seconds of speed 1 of each arrival; shape (arrivals,).
        latency: Seconds within which an arrival is in time.
        late: Core-seconds that may be late.
        period: Seconds between plans. Hosts are leased only then.
    """

    times: Floats
    work: Floats
    latency: float
    late: float
    seconds: float
    period: float
    leases: tuple[Lease, ...]
    min_hosts: int = 1
    max_hosts: int = 1_000_000


def lower_bound(problem: Problem, *, whole: bool = True, seconds: float = SOLVE_S) -> Bound:
    """Return the bound of `problem`.

    Raises:
        InputError: scipy is missing, or its solver fails.
    """
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise InputError(
            "the bound needs scipy, whose solver HiGHS computes it: install elastream[simulate]", ("bound",)
        ) from None
    relaxed = _Model(problem, whole=False)
    cost, _, _ = _solve(relaxed)
    fractional = Bound(max(0.0, cost * (1 - SLACK)), False)
    if not whole:
        return fractional
    model = _Model(problem, whole=True)
    if not model.on_rounds or model.steps > MOST_WHOLE_STEPS:
        return replace(fractional, note="the load is long, so the model may lease parts of hosts")
    cost, note = _in_windows(model, seconds)
    cost *= 1 - SLACK
    return Bound(cost, True, note) if cost >= fractional.cost else replace(fractional, note=note)


# -- the relaxed model --------------------------------------------------------------------------------------------------


class Term(NamedTuple):
    """A variable in the rows that `rows` selects: its columns and factors."""

    columns: Indices
    factors: Floats | float
    rows: Mask


class _Model:
    """The relaxed model as a linear programme over equal time steps."""

    # Variables of a host type and step: leases that begin (`new`), units that prolong one (`more`), paid hosts (`paid`),
    # and those within their least time (`young`). Variables of a step: waiting work that will be in time (`backlog`), and
    # work given up so far (`given_up`).

    def __init__(self, problem: Problem, *, whole: bool) -> None:
        self.problem, self.whole = problem, whole
        self.width, self.on_rounds = _step(problem, MOST_WHOLE_STEPS if whole else MOST_STEPS)
        self.steps = max(1, math.ceil(problem.seconds / self.width - ROUNDING))
        self.step = np.arange(self.steps)
        self.every = np.ones(self.steps, dtype=bool)
        self.ends_at = np.minimum((self.step + 1) * self.width, problem.seconds)
        self.lasts = np.diff(self.ends_at, prepend=0.0)
        self.scale = max(each.capacity for each in problem.leases) * self.width
        self._cells: list[tuple[Indices, Indices, Floats]] = []
        self._low: list[Floats] = []
        self._high: list[Floats] = []
        self._rows = 0
        kinds = len(problem.leases)
        variables = np.arange((4 * kinds + 2) * self.steps).reshape(-1, self.steps)
        self.new, self.more, self.paid, self.young = variables[: 4 * kinds].reshape(4, kinds, self.steps)
        self.backlog, self.given_up = variables[4 * kinds :]
        self.costs = np.zeros(variables.size)
        self.most = np.full(variables.size, np.inf)
        self.integral = np.zeros(variables.size, dtype=np.int64)
        self.step_of = np.tile(self.step, variables.shape[0])
        for kind, lease in enumerate(problem.leases):
            self._lease(kind, lease)
        self._limit_hosts()
        self._serve()
        self.matrix = self._matrix()
        self.low, self.high = np.concatenate(self._low), np.concatenate(self._high)

    def _lease(self, kind: int, lease: Lease) -> None:
        new, more, paid, young = self.new[kind], self.more[kind], self.paid[kind], self.young[kind]
        first, unit = _blocks(lease, self.width)
        self.integral[[new, more, paid]] = self.whole
        self.most[new] = self.problem.max_hosts
        if self.on_rounds:
            rounds = self.step * self.width / self.problem.period
            self.most[new[np.abs(rounds - np.round(rounds)) > 1e-6]] = 0.0
        change = [Term(paid, 1.0, self.every), self._earlier(paid, 1, -1.0), Term(new, -1.0, self.every)]
        if unit:
            self.most[young] = self.most[more[0]] = 0.0
            self.costs[new], self.costs[more] = lease.rate * lease.first, lease.rate * lease.unit
            expired = [self._earlier(new, first, 1.0), self._earlier(more, unit, 1.0)]
            self._add([*change, *expired, Term(more, -1.0, self.every)], 0.0, 0.0)
            self._add([Term(more, -1.0, self.every), *expired], 0.0, np.inf)
            return
        self.most[more] = 0.0
        self.costs[paid] = lease.rate * self.lasts
        self.costs[new] = lease.rate * np.maximum(0.0, (self.step + first) * self.width - self.problem.seconds)
        if first == 1 and lease.first < self.width:
            self.costs[new] = 0.0
        if self.whole:  # a lease may end at any time of a step: its last one is free
            self.costs[new] -= lease.rate * self.width
            self.costs[paid[-1]] += lease.rate * self.width
        self._add(change, -np.inf, 0.0)
        self._add([Term(paid, 1.0, self.every), Term(young, -1.0, self.every)], 0.0, np.inf)
        begun = [Term(new, -1.0, self.every), self._earlier(new, first, 1.0)]
        self._add([Term(young, 1.0, self.every), self._earlier(young, 1, -1.0), *begun], 0.0, 0.0)

    def _earlier(self, columns: Indices, steps: int, factor: float) -> Term:
        return Term(columns[: max(0, self.steps - steps)], factor, self.step >= steps)

    def _limit_hosts(self) -> None:
        problem = self.problem
        self._add([Term(paid, 1.0, self.every) for paid in self.paid], float(problem.min_hosts), np.inf)
        # Units may be paid beyond a release, so only hosts billed by time are limited.
        by_time = [paid for paid, each in zip(self.paid, problem.leases, strict=True) if not _blocks(each, self.width)[1]]
        if by_time and problem.max_hosts < MOST_HOSTS:
            self._add([Term(paid, 1.0, self.every) for paid in by_time], -np.inf, float(problem.max_hosts))

    def _serve(self) -> None:
        """Serve all work that is not given up by its deadline, in units of `scale` core-seconds."""
        problem = self.problem
        arrived = np.concatenate([[0.0], np.cumsum(problem.work)]) / self.scale

        def arrived_by(times: Floats) -> Floats:
            return np.asarray(arrived[np.searchsorted(problem.times, times, side="left")])

        arrivals = np.diff(arrived_by(self.ends_at), prepend=0.0)
        given_up = [Term(self.given_up, 1.0, self.every), self._earlier(self.given_up, 1, -1.0)]
        terms = [Term(self.backlog, 1.0, self.every), self._earlier(self.backlog, 1, -1.0), *given_up]
        for kind, lease in enumerate(problem.leases):
            serves = lease.capacity * self.lasts / self.scale
            terms.append(Term(self.paid[kind], serves, self.every))
            for age, part in enumerate(_starting(lease.start, self.width, exact=self.on_rounds)[: self.steps]):
                rows = self.step >= age + 1  # the hosts of the first step are there before the run
                terms.append(Term(self.new[kind][1 : self.steps - age], -part * serves[rows], rows))
        self._add(terms, arrivals, np.inf)
        self._add(given_up, 0.0, arrivals)
        # Work that waits at the end of a step and will be in time arrived within the latency before it.
        recent = arrived_by(self.ends_at) - arrived_by(self.ends_at - problem.latency - ROUNDING)
        waits = [Term(self.backlog, 1.0, self.every)]
        if steps := math.floor(problem.latency / self.width + ROUNDING):
            waits += [Term(self.given_up, 1.0, self.every), self._earlier(self.given_up, steps, -1.0)]
        self._add(waits, -np.inf, recent)
        self.most[self.given_up] = max(0.0, problem.late) / self.scale

    def _add(self, terms: Sequence[Term], low: Floats | float, high: Floats | float) -> None:
        rows = self._rows + self.step
        for columns, factors, where in terms:
            count = int(where.sum())
            self._cells.append((rows[where], columns, np.broadcast_to(np.asarray(factors, dtype=np.float64), (count,))))
        self._low.append(np.broadcast_to(np.asarray(low, dtype=np.float64), (self.steps,)))
        self._high.append(np.broadcast_to(np.asarray(high, dtype=np.float64), (self.steps,)))
        self._rows += self.steps

    def _matrix(self) -> "csr_matrix":
        from scipy.sparse import csr_matrix

        rows, columns, factors = (np.concatenate(parts) for parts in zip(*self._cells, strict=True))
        return csr_matrix((factors, (rows, columns)), shape=(self._rows, self.costs.size))


def _step(problem: Problem, most: int) -> tuple[float, bool]:
    """Return the width of time steps (seconds), and True if rounds begin with them."""
    period = min(problem.period, problem.seconds)
    rounds = problem.seconds / period
    if rounds > most:
        return period * math.ceil(rounds / most), False
    fine = math.ceil(period / max(problem.latency / STEPS_A_LATENCY, ROUNDING))
    return period / max(1, min(fine, math.floor(most / rounds))), True


def _blocks(lease: Lease, width: float) -> tuple[int, int]:
    """Return a lease's least time and billing time unit in steps; a unit that is not whole is 0."""
    unit, first = lease.unit / width, lease.first / width
    if unit > 1 - ROUNDING and abs(unit - round(unit)) < 1e-6:
        return round(first), round(unit)
    return max(1, math.floor(first + ROUNDING)), 0


def _starting(start: float, width: float, *, exact: bool) -> Floats:
    """Return the part of each step in which a host still starts; not `exact`: only steps that the start fills."""
    steps = start / width
    parts = np.clip(steps - np.arange(math.ceil(steps - ROUNDING)), 0.0, 1.0)
    return parts if exact else np.asarray(parts[parts >= 1 - ROUNDING])


# -- its solution -------------------------------------------------------------------------------------------------------


def _solve(model: _Model) -> tuple[float, Floats, Floats]:
    from scipy.optimize import linprog
    from scipy.sparse import vstack

    equal = model.low == model.high
    above, below = np.isfinite(model.low) & ~equal, np.isfinite(model.high) & ~equal
    matrix = model.matrix
    answer = linprog(
        model.costs,
        A_ub=vstack([matrix[below], -matrix[above]]),
        b_ub=np.concatenate([model.high[below], -model.low[above]]),
        A_eq=matrix[equal],
        b_eq=model.low[equal],
        bounds=np.column_stack([np.zeros(model.most.size), model.most]),
        method="highs",
    )
    if answer.status == 2:
        raise InputError("no fleet of at most max_hosts hosts can keep the target, so its cost has no bound", ("bound",))
    if answer.status != 0:
        raise InputError(f"the solver of the bound failed: {answer.message}", ("bound",))
    prices = np.zeros(matrix.shape[0])
    of_limits = np.asarray(answer.ineqlin.marginals)
    prices[below], prices[equal] = of_limits[: int(below.sum())], answer.eqlin.marginals
    prices[above] -= of_limits[int(below.sum()) :]
    return float(answer.fun), np.asarray(answer.x), prices


def _in_windows(model: _Model, seconds: float) -> tuple[float, str]:
    """Return the bound for whole hosts, and a note."""
    # A Lagrangian relaxation: rows that join windows become costs. For any prices its optimum, a sum over windows, is at
    # most the true one.
    total, solution, prices = _solve(model)
    count = max(1, round(model.steps / WINDOW_STEPS))
    window = model.step_of * count // model.steps
    cells = model.matrix.tocoo()
    first, last = np.full(model.low.size, count), np.full(model.low.size, -1)
    np.minimum.at(first, cells.row, window[cells.col])
    np.maximum.at(last, cells.row, window[cells.col])
    joining = np.where(first != last, prices, 0.0)
    side = np.where(joining > 0, model.low, model.high)
    joining = np.where(np.isfinite(side), joining, 0.0)  # a rounding error of a price on a side without a limit
    costs = model.costs - model.matrix.T @ joining
    bound, unfinished = float(joining @ np.where(joining == 0.0, 0.0, side)), 0
    for number in range(count):
        columns, rows = np.flatnonzero(window == number), np.flatnonzero((first == number) & (last == number))
        least = float(costs[columns] @ solution[columns])
        gap = GAP * max(total / count, ROUNDING) / max(abs(least), ROUNDING)
        whole, finished = _window(model, columns, rows, costs, gap, seconds / count)
        bound += max(least, whole)
        unfinished += not finished
    if not unfinished:
        return bound, ""
    return bound, f"the solver did not finish {unfinished} of {count} windows within {seconds:g} s; its own bounds count"


def _window(
    model: _Model, columns: Indices, rows: Indices, costs: Floats, gap: float, seconds: float
) -> tuple[float, bool]:
    """Return the bound of a window, -inf without one, and True if the solver finished."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    answer = milp(
        costs[columns],
        integrality=model.integral[columns],
        bounds=Bounds(0.0, model.most[columns]),
        constraints=LinearConstraint(model.matrix[rows][:, columns], model.low[rows], model.high[rows]),
        options={"time_limit": seconds, "mip_rel_gap": gap},
    )
    bound = getattr(answer, "mip_dual_bound", None)
    return -math.inf if bound is None or math.isnan(bound) else float(bound), answer.status == 0


# -- the load as the model sees it --------------------------------------------------------------------------------------


def problem_of(scene: Scene, target: float) -> Problem:
    """Return the relaxed problem of a run that keeps a fraction `target` of the records in time.

    Raises:
        InputError: No bound is proven for the simulation.
    """
    plant, _ = scene.set_up(Static(1))
    network, constants, latency = plant.network, scene.constants, scene.settings.latency
    if reason := _unsupported_reason(scene, plant):
        raise InputError(f"there is no bound: {reason}", ("bound",))
    assert latency is not None
    need = _need_chained(network, constants) if isinstance(network, FusedNetwork) else _need_unchained(network, constants)
    flows = {name: source.until(scene.seconds) for name, source in network.sources.items()}
    times = np.concatenate([flow.times for flow in flows.values()])
    counts = np.concatenate([flow.counts for flow in flows.values()])
    source = np.repeat(np.arange(len(flows)), [flow.times.size for flow in flows.values()])
    order = np.argsort(times, kind="stable")
    times, counts, source = times[order], counts[order], source[order]
    work = counts * np.array([need.work[name] for name in flows])[source]
    slack = 0.0
    if isinstance(network, QueueNetwork):
        work += _drawn(network, constants, need, counts, source)
        slack = _slack(network, scene.settings.types, constants)
    late = _heaviest(work, counts, 1.0 if math.isinf(need.weight) else (1 - target) * need.weight)
    if not need.in_order:  # records of the last seconds may then be in time in place of older ones
        late += float(work[times >= scene.seconds - latency].sum())
    leases = tuple(_lease(kind, plant, constants) for kind in scene.settings.types)
    times = np.maximum(times - slack / 2, 0.0)
    return Problem(
        times, work, latency + slack, late, scene.seconds, scene.period, leases, scene.min_hosts, scene.max_hosts
    )


def _unsupported_reason(scene: Scene, plant: SimulatedPlant) -> str:
    constants, layout = scene.constants, plant.context.layout
    periods = scene.seconds / constants.monitor
    if scene.settings.latency is None:
        return "it takes a target latency (target_latency)"
    if abs(periods - round(periods)) > SLACK:
        lasts = f"{math.floor(periods) * constants.monitor:g} s"
        return f"the last monitoring period is cut short, and its records are not judged; give a limit, such as {lasts}"
    if constants.faults or constants.joins:
        return "hosts fail" if constants.faults else "operators join their inputs"
    if not layout.unchained and len(layout.segments) > 1:
        return "records pass several queries (durable edges), and what each must have done in time is not known"
    if layout.unchained and any(each.bandwidth is not None for each in scene.settings.types):
        return "records on links of limited bandwidth count as neither late nor waiting"
    return ""


def _lease(kind: HostType, plant: SimulatedPlant, constants: Settings) -> Lease:
    """Return the terms of `kind` at its best: the fastest factor of every trace, the shortest start."""
    start = kind.start * max(0.0, 1 - constants.host_start_spread)
    trace = constants.speed_trace
    speed = kind.speed * (1.0 if trace is None else float(np.max(trace.factors)))
    if isinstance(plant.network, QueueNetwork):
        images = min((each.operator.image for each in plant.network.stations), default=0.0)
        return Lease.of(kind, kind.cores * speed, start + constants.start_cached + images / constants.registry_bandwidth)
    quickest = min((*constants.batch_ratios, 1.0)) if constants.batch_ratios else 1.0
    cores = min(kind.cores * constants.delivered * max(1.0, constants.settling_boost), kind.slots)
    return Lease.of(kind, cores * speed / max(quickest, ROUNDING), start)


class _Need(NamedTuple):
    """Least demand of records.

    Attributes:
        work: Least core-seconds of speed 1 for a record of each source to be in time.
        weight: Most late records that the simulator may count as one.
        in_order: True if records are served in order of arrival.
        drawn: Records per record of each source, by operator with drawn service times.
    """

    work: Mapping[str, float]
    weight: float
    in_order: bool
    drawn: Mapping[str, Mapping[str, float]]


def _need_chained(network: FusedNetwork, settings: Settings) -> _Need:
    graph = network.graph
    heads, sinks = list(network.sources), _results(graph)
    work = _total(graph, settings, min, lambda name, cost: cost)
    least, most = (_total(graph, settings, best, _counts(sinks)) for best in (min, max))
    # The simulator charges each record the mean over the sources.
    low, high, mean = (sum(each[head] for head in heads) / len(heads) for each in (least, most, work))
    return _Need(dict.fromkeys(heads, mean), high / low if low > 0 else math.inf, True, {})


def _need_unchained(network: QueueNetwork, settings: Settings) -> _Need:
    graph, heads, sinks = network.graph, list(network.sources), _results(network.graph)
    least, most = (_total(graph, settings, best, _counts(sinks)) for best in (min, max))
    low = min(least[head] for head in heads)
    shared = frozenset(graph.by_name).intersection(*(_before(graph, sink) for sink in sinks))
    drawn = {}
    for station in network.stations:
        if station.name in shared and isinstance(station, ItemStation):
            volumes = [_total(graph, settings, best, _counts(frozenset({station.name}))) for best in (min, max)]
            shared -= {station.name}
            if all(volumes[0][head] == volumes[1][head] for head in heads):
                drawn[station.name] = {head: volumes[0][head] for head in heads}
    work = _total(graph, settings, min, lambda name, cost: cost if name in shared else 0.0)
    return _Need(work, max(most[head] for head in heads) / low if low > 0 else math.inf, False, drawn)


def _results(graph: Graph) -> frozenset[str]:
    return frozenset(each.name for each in graph.sinks if not isinstance(each.writes, DomainSignal))


def _counts(names: frozenset[str]) -> Callable[[str, float], float]:
    return lambda name, cost: float(name in names)


def _before(graph: Graph, name: str) -> frozenset[str]:
    return frozenset({name}).union(*(_before(graph, edge.source) for edge in graph.inputs[name]))


def _total(
    graph: Graph, settings: Settings, best: Callable[[Iterable[float]], float], own: Callable[[str, float], float]
) -> dict[str, float]:
    total: dict[str, float] = {}
    for name in reversed(graph.order):
        edges = graph.outputs[name]
        dealt = [edge for edge in edges if edge.delivery is Delivery.ROUND_ROBIN]
        sure = sum(edge.choice is None for edge in dealt)
        dealt_to = len(dealt) if best is min else max(1, sure)
        branches: dict[str | None, list[float]] = {}
        for edge in edges:
            part = total[edge.target] / (dealt_to if edge in dealt else 1)
            branches.setdefault(edge.choice, []).append(part)
        onward = sum(branches.pop(None, ())) + sum(best(parts) for parts in branches.values())
        operator = graph.by_name[name]
        costs = [own_cost(operator, alternate, settings) for alternate in operator.alternates]
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED):
            total[name] = best([own(name, each.work) + each.selectivity * onward for each in costs if each is not None])
        else:
            total[name] = own(name, 0.0) + onward
    return total


def _drawn(network: QueueNetwork, settings: Settings, need: _Need, counts: Floats, source: Indices) -> Floats:
    """Return the work of each arrival at operators with drawn service times, item by item in order."""
    work = np.zeros(counts.size)
    for operator, volumes in need.drawn.items():
        station = network.by_name[operator]
        items = np.cumsum(counts * np.array([volumes[name] for name in network.sources])[source])
        shape = station.shape
        drawn = _factors(shape.kind, shape.spread, shape.samples, station.seed, station.stream, math.ceil(items[-1]))
        reach = np.concatenate([[0.0], np.cumsum(drawn)])
        costs = [own_cost(station.operator, alternate, settings) for alternate in station.operator.alternates]
        cost = min(each.work for each in costs if each is not None)
        work += cost * np.diff(np.interp(items, np.arange(reach.size), reach), prepend=0.0)
    return work


@njit(cache=True)
def _factors(kind: int, spread: float, samples: Floats, seed: int, stream: int, count: int) -> Floats:
    start, factors = sequence(seed, stream), np.empty(count)
    for number in range(count):
        factors[number] = factor(kind, spread, samples, start, number)
    return factors


def _heaviest(work: Floats, counts: Floats, share: float) -> float:
    left = max(0.0, share * float(counts.sum()))
    if left >= counts.sum():
        return float(work.sum())
    each = np.divide(work, counts, out=np.zeros(work.size), where=counts > 0)
    order = np.argsort(-each, kind="stable")
    reach = np.cumsum(counts[order])
    whole = int(np.searchsorted(reach, left, side="right"))
    rest = left - (reach[whole - 1] if whole else 0.0)
    return float(work[order[:whole]].sum() + rest * each[order[whole]])


def _slack(network: QueueNetwork, types: Sequence[HostType], settings: Settings) -> float:
    """Return the most seconds between simulated queues and a fluid: two slots and two services each."""
    slowest = min(each.speed for each in types)
    costs = [
        own_cost(each.operator, alternate, settings) for each in network.stations for alternate in each.operator.alternates
    ]
    services = sum(each.work for each in costs if each is not None) / slowest
    return 2 * (len(network.stations) * settings.monitor / RATE_SLOTS + services)
