"""Simulated runs that begin with a plan in force, as chapters 4 and 5 of the thesis do: deployed first, adapted
afterwards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.action import SwitchAlternate
from elastream.core.frames import Floats
from elastream.core.hosts import HostType
from elastream.core.plant import Policy
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from elastream.evaluation.simulated import SimulatedRun, simulated
from elastream.evaluation.worth import Worth, WorthWatch
from elastream.loads.links import Ec2Links
from elastream.loads.speeds import SpeedWalk
from elastream.policies.value_cost.greedy import with_option
from elastream.policies.value_cost.packing import NEARLY, rate_of
from elastream.policies.value_cost.problem import HOUR, Conditions, Deployment, Goal, Problem, value_of
from elastream.policies.value_cost.reading import read
from elastream.simulator import Settings, SimulatedPlant, Travel, make_plant
from elastream_papers.thesis.ec2 import INSTANT, RUN, CloudAssumptions

MONITOR = INSTANT
"""Seconds between two measurements: those of an instant are what the thesis plans by (p. 73)."""
MAX_HOSTS = 10_000
"""Most hosts: above what 8,000 messages/s need."""


@dataclass(frozen=True)
class Site:
    """What a run is of. loads: by source; expected: records/s by source that the first plan is made for."""

    graph: Graph
    types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    expected: Mapping[str, float]
    goal: Goal
    settings: Settings
    seed: int

    def plant(self, **given: object) -> SimulatedPlant:
        """The plant of this run at time 0."""
        return make_plant(
            lay_out(self.graph, fused=False), host_types=self.types, loads=self.loads, seed=self.seed,
            settings=self.settings, max_hosts=MAX_HOSTS, **given,  # type: ignore[arg-type]
        )  # fmt: skip


def settings_of(given: CloudAssumptions, *, varies: bool, seed: int) -> Settings:
    """Settings of a plant. varies: whether speeds of hosts walk as documented, and links are as section 1.3 measured
    them."""
    fixed = Settings(monitor=MONITOR, travel=Travel.COHORTS, start_cached=given.instance)
    if not varies:
        return fixed
    return replace(fixed, speed_trace=SpeedWalk(seed=seed).over(RUN), link_trace=Ec2Links(seed=seed).over(RUN))


def problem_at(site: Site) -> tuple[Problem, Conditions]:
    """The problem before anything is leased, under the expected rates and the rated speeds of hosts (thesis, p. 70)."""
    seen = site.plant().observe()
    found = read(seen, site.goal, INSTANT).problem
    rates = np.array([[site.expected[found.operators[row]] for row in found.sources]])
    return found, Conditions(rates, np.zeros(len(found.operators)), INSTANT)


def deployed(site: Site, problem: Problem, plan: Deployment) -> SimulatedPlant:
    """The plant with `plan` in force at time 0, its hosts up and its instances where it has them."""
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
    """What `policy` comes to on `plant` in 12 hours, and the run."""
    watch = WorthWatch(site.graph, site.goal, INSTANT)
    run = simulated(plant, policy, period=INSTANT, until=RUN, look=watch.look)
    return watch.worth(), run


def of_best(graph: Graph) -> Graph:
    """The dataflow with only the alternate of the highest value of each operator (thesis, p. 94: "Gamma = 1")."""
    return replace(
        graph,
        operators=tuple(
            replace(each, alternates=(max(each.alternates, key=lambda a: a.value),)) if each.alternates else each
            for each in graph.operators
        ),
    )


def at_best(site: Site) -> tuple[float, float, float]:
    """(profit, value, money) of a run in which every instant has the alternates that leave most (4.8), and of each operator
    just the instances that its records need, on cores of the type that cost least for them."""
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
    """Money an hour of the instances that work `rates`, all cores being `speed` times as fast as rated."""
    works = problem.network.unlimited(rates, problem.selectivities(active)) * problem.costs(active)

    def of(kind: HostType) -> Floats:
        each = kind.speed * speed * problem.per_instance
        held = problem.cores / kind.cores * rate_of(kind)
        return np.where(problem.placed, np.maximum(1, np.ceil(works / each - NEARLY)) * held, 0.0)

    return float(np.min([of(kind) for kind in problem.types], axis=0).sum())


def _best(problem: Problem, rates: Floats, speed: float, active: list[int]) -> list[int]:
    """The alternates whose value, less what their instances cost for the period, is highest: one after the other is tried
    until none is better."""

    def worth(each: list[int]) -> float:
        money = _hourly(problem, rates, speed, each) * problem.goal.period / HOUR
        return value_of(problem, each) - problem.line.sigma * money

    def others() -> Iterator[list[int]]:
        for row, options in enumerate(problem.options):
            yield from (with_option(active, row, option) for option in range(len(options)) if option != active[row])

    best = worth(active)
    while (found := max(others(), key=worth, default=None)) is not None and (reached := worth(found)) > best + NEARLY:
        active, best = found, reached
    return active
