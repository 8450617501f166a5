"""The cloud of chapters 4 and 5 of the thesis, and simulated runs from a plan in force."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.action import SwitchAlternate
from elastream.core.frames import Floats
from elastream.core.hosts import Billing, HostType
from elastream.core.plant import Policy
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from elastream.evaluation.trials import SimulatedRun, simulated
from elastream.evaluation.worth import Worth, WorthWatch
from elastream.loads.links import Ec2Links
from elastream.loads.pattern import Pattern, Section
from elastream.loads.speeds import SpeedWalk
from elastream.policies.value_cost.greedy import with_option
from elastream.policies.value_cost.problem import HOUR, Conditions, Deployment, Goal, Problem, rate_of, value_of
from elastream.policies.value_cost.reading import read
from elastream.simulator import Settings, SimulatedPlant, Travel, make_plant
from elastream.units import ROUNDING
from elastream_papers.harness.assumptions import assumed

RUN, INSTANT = 12 * 3600.0, 300.0  # seconds of a run, and between two rounds (thesis, pp. 88 and 111)
# Cores, speed of a core (EC2 compute units), GiB and $ an hour: us-east-1, 26 September 2013, the oldest available list.
# The thesis names m1 and no price (p. 94).
PRICES: Mapping[str, tuple[int, float, float, float]] = {
    "m1.small": (1, 1.0, 1.7, 0.06),
    "m1.medium": (1, 2.0, 3.75, 0.12),
    "m1.large": (2, 2.0, 7.5, 0.24),
    "m1.xlarge": (4, 2.0, 15.0, 0.48),
}
GIB = 2**30 / 1e6  # megabytes


@dataclass(frozen=True)
class CloudAssumptions:
    """Values of cloud and loads missing in the thesis."""

    start: float = assumed(
        100.0, "s from lease to ready", "97 s: Linux on EC2, mean (Mao and Humphrey 2012, 'A performance study on the VM "
        "startup time in the cloud')"
    )  # fmt: skip
    step: float = assumed(
        0.1, "of the mean rate, at most, every 2 min", "as the speed of hosts walks (Linear Road's walk within +-50 %)"
    )
    sizes: float = assumed(4.0, "types of m1, from the smallest", "the thesis names m1 and no type", most=4.0)
    instance: float = assumed(5.0, "s", "an instance starts: VISP's 5 to 10 s; chapter 4 names no time")


def host_types(assumptions: CloudAssumptions) -> tuple[HostType, ...]:
    """Return the m1 types offered, smallest first, billed by the hour."""
    return tuple(
        HostType(
            name, cores=float(cores), speed=speed, memory=memory * GIB, price=price, billing=Billing(3600.0),
            start=assumptions.start,
        )
        for name, (cores, speed, memory, price) in list(PRICES.items())[: max(1, round(assumptions.sizes))]
    )  # fmt: skip


def walk(mean: float, seed: int, assumptions: CloudAssumptions, seconds: float = RUN, every: float = 120.0) -> Pattern:
    """Return a load walking within +-50 % of `mean` records/s (thesis, p. 86), reflected at the ends."""
    draws = np.random.default_rng([seed, 41]).uniform(-assumptions.step, assumptions.step, math.ceil(seconds / every))
    # Folding an unbounded walk at both ends is the walk that reflects there.
    place = np.abs(np.mod(np.cumsum(draws) - 0.5, 2.0) - 1.0) - 0.5
    return loads_between(mean * (1 + place), every, seconds)


def loads_between(rates: Floats, every: float, seconds: float) -> Pattern:
    """Return a load of these rates (records/s), each for `every` seconds; rounded, so equal on every machine."""
    levels = [round(float(rate), 9) for rate in rates]
    return Pattern(tuple(Section(min(every, seconds - number * every), rate, rate) for number, rate in enumerate(levels)))


MONITOR = INSTANT  # seconds between measurements, by which the thesis plans (p. 73)
MAX_HOSTS = 10_000  # above the needs of 8,000 messages/s


@dataclass(frozen=True)
class Site:
    """Conditions of a run. loads: by source; expected: records/s by source for the first plan."""

    graph: Graph
    types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    expected: Mapping[str, float]
    goal: Goal
    settings: Settings
    seed: int

    def plant(self, **assumptions: object) -> SimulatedPlant:
        return make_plant(
            lay_out(self.graph, chained=False), host_types=self.types, loads=self.loads, seed=self.seed,
            settings=self.settings, max_hosts=MAX_HOSTS, **assumptions,  # type: ignore[arg-type]
        )  # fmt: skip


def settings_of(assumptions: CloudAssumptions, *, varies: bool, seed: int) -> Settings:
    """Return settings of a plant. varies: speeds of hosts and links change, as in section 1.3."""
    fixed = Settings(monitor=MONITOR, travel=Travel.COHORTS, start_cached=assumptions.instance)
    if not varies:
        return fixed
    return replace(fixed, speed_trace=SpeedWalk(seed=seed).over(RUN), link_trace=Ec2Links(seed=seed).over(RUN))


def problem_at(site: Site) -> tuple[Problem, Conditions]:
    """Return the problem before any lease, at expected rates (thesis, p. 70)."""
    seen = site.plant().observe()
    found = read(seen, site.goal, INSTANT).problem
    rates = np.array([[site.expected[found.operators[row]] for row in found.sources]])
    return found, Conditions(rates, np.zeros(len(found.operators)), INSTANT)


def deployed(site: Site, problem: Problem, plan: Deployment) -> SimulatedPlant:
    """Return the plant with `plan` in force at time 0."""
    on = {
        name: np.repeat(np.arange(len(plan.hosts)), plan.instances[:, row]).tolist()
        for row, name in enumerate(problem.operators)
        if problem.placed[row]
    }
    plant = site.plant(
        hosts=[host.type.name for host in plan.hosts], parallelism={name: len(rows) for name, rows in on.items()}, on=on
    )
    switches = [
        SwitchAlternate(name, options[active].name)
        for name, options, active in zip(problem.operators, problem.options, plan.active, strict=True)
        if len(options) > 1
    ]
    refused = [outcome for outcome in plant.switch(switches) if not outcome.succeeded]
    assert not refused, refused
    return plant


def run_site(site: Site, plant: SimulatedPlant, policy: Policy) -> tuple[Worth, SimulatedRun]:
    """Run `policy` on `plant` for 12 hours; return its worth and the run."""
    watch = WorthWatch(site.graph, site.goal, INSTANT)
    run = simulated(plant, policy, period=INSTANT, until=RUN, look=watch.look, roll_back=False)
    return watch.worth(), run


def of_best(graph: Graph) -> Graph:
    """Return the dataflow with only the best alternates (thesis, p. 94: "Gamma = 1")."""
    return replace(
        graph,
        operators=tuple(
            replace(each, alternates=(max(each.alternates, key=lambda a: a.value),)) if each.alternates else each
            for each in graph.operators
        ),
    )


def at_best(site: Site) -> tuple[float, float, float]:
    """Return (profit, value, money) of a run with the best alternates (4.8) in every instant."""
    problem, _ = problem_at(site)
    trace = site.settings.speed_trace
    speed = 1.0 if trace is None else float(trace.factors.mean())
    starts = np.arange(round(RUN / INSTANT)) * INSTANT
    values, money = [], 0.0
    active = [int(np.argmax([option.value for option in options])) for options in problem.options]
    for start in starts.tolist():
        rates = np.zeros(len(problem.operators))
        for row in problem.sources.tolist():
            load = site.loads[problem.operators[row]]
            rates[row] = (load.count(start + INSTANT) - load.count(start)) / INSTANT
        active = _best(problem, rates, speed, active)
        values.append(value_of(problem, active))
        money += _hourly(problem, rates, speed, active) * INSTANT / HOUR
    value = float(np.mean(values))
    return problem.line.profit(value, money), value, money


def _hourly(problem: Problem, rates: Floats, speed: float, active: Sequence[int]) -> float:
    works = problem.network.unlimited(rates, problem.selectivities(active)) * problem.costs(active)

    def of(kind: HostType) -> Floats:
        each = kind.speed * speed * problem.per_instance
        held = problem.cores / kind.cores * rate_of(kind)
        return np.where(problem.placed, np.maximum(1, np.ceil(works / each - ROUNDING)) * held, 0.0)

    return float(np.min([of(kind) for kind in problem.types], axis=0).sum())


def _best(problem: Problem, rates: Floats, speed: float, active: list[int]) -> list[int]:
    """Return the alternates of the highest value less instance costs, by coordinate search."""

    def worth(each: list[int]) -> float:
        money = _hourly(problem, rates, speed, each) * problem.goal.period / HOUR
        return value_of(problem, each) - problem.line.sigma * money

    def others() -> Iterator[list[int]]:
        for row, options in enumerate(problem.options):
            yield from (with_option(active, row, option) for option in range(len(options)) if option != active[row])

    best = worth(active)
    while (found := max(others(), key=worth, default=None)) is not None and (reached := worth(found)) > best + ROUNDING:
        active, best = found, reached
    return active
