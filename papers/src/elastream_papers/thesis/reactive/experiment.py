"""Chapter 4 of the thesis, simulated: deployments of Linear Road that stay, and such that are adapted, under hosts and
rates that vary.

First every algorithm plans for each mean rate; then its plan runs for 12 hours, static or adapted by the policy of the same
name. `algorithms` has both, `page` shows what came of it, `bars` what is judged.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.frames import Floats
from elastream.core.plant import Policy
from elastream.loads import constant
from elastream.policies.placements import Untouched
from elastream.policies.value_cost.problem import Deployment, Goal
from elastream_papers.thesis.deployed import (
    INSTANT,
    RUN,
    CloudAssumptions,
    Site,
    at_best,
    deployed,
    host_types,
    of_best,
    problem_at,
    run_site,
    settings_of,
    walk,
)
from elastream_papers.thesis.reactive.algorithms import policy_of, searched
from elastream_papers.thesis.reactive.linear_road import LinearRoadAssumptions, break_even, linear_road

RATES = (10, 20, 50, 100, 500, 1000, 2000)
"""Mean messages/s of the runs (Figs. 4.6 and 4.7(c))."""
TABLED = 50
"""Those of Table 4.2."""
PLANNED = (*RATES, 4000, 8000)
"""Those of the plans (Fig. 4.7)."""
ALGORITHMS = ("exact", "genetic", "ce", "sh")
ADAPTING = ("genetic", "ce", "sh")
"""Policies that adapt; the exact model plans once."""
SEEDS = (1, 2, 3)
"""Three runs (p. 88), each with loads and hosts of its own."""
TARGET, TOLERANCE = 0.8, 0.05
"""Relative throughput that is to hold (p. 90)."""


@dataclass(frozen=True)
class ReactiveAssumptions:
    """All that is assumed: of the dataflow, and of the cloud."""

    road: LinearRoadAssumptions = field(default_factory=LinearRoadAssumptions)
    cloud: CloudAssumptions = field(default_factory=CloudAssumptions)


@dataclass(frozen=True, slots=True)
class Variation:
    """What varies in a run: speeds and links of hosts, and rates."""

    hosts: bool
    rates: bool


NONE, HOSTS, LOADS, BOTH = Variation(False, False), Variation(True, False), Variation(False, True), Variation(True, True)
COLUMNS: Mapping[str, Variation] = {"neither": NONE, "hosts": HOSTS, "rates": LOADS, "both": BOTH}
"""Columns of Table 4.2."""


@dataclass(frozen=True, slots=True)
class PlanCase:
    """A plan for a mean rate. seconds: time limit of the exact model. alternates: whether others than the best may run."""

    algorithm: str
    rate: int
    seconds: float = 60.0
    alternates: bool = True
    given: ReactiveAssumptions = field(default_factory=ReactiveAssumptions)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan promises. cores: of all hosts. speed: their cores times speed. seconds: CPU that planning took. bound: no
    plan has a higher profit; NaN but of the exact model."""

    case: PlanCase
    plan: Deployment
    profit: float
    throughput: float
    value: float
    cost: float
    cores: float
    power: float
    seconds: float
    bound: float


@dataclass(frozen=True, slots=True)
class ReactiveCase:
    """A run. policy: that adapts; None: the plan stays."""

    algorithm: str
    rate: int
    varies: Variation
    adapted: bool
    seed: int
    plan: Deployment
    alternates: bool = True
    given: ReactiveAssumptions = field(default_factory=ReactiveAssumptions)


@dataclass(frozen=True, slots=True)
class ReactiveRun:
    """What a case came to. throughput: of what came in; waited: with what waited; unstable: chi. hosts, cores: mean of
    those leased. most: of the profit, about (`at_best`). series: rows of (hours, records/s that came, hosts, throughput,
    value)."""

    case: ReactiveCase
    throughput: float
    waited: float
    value: float
    value_all: float
    cost: float
    profit: float
    profit_all: float
    unstable: int
    hosts: float
    seconds: float
    refused: int
    most: float
    series: Floats


def site_of(
    rate: int, varies: Variation, seed: int, given: ReactiveAssumptions, *, alternates: bool = True, seconds: float = RUN
) -> Site:
    """Linear Road at a mean of `rate` position reports a second."""
    load = walk(rate, seed, given.cloud, seconds) if varies.rates else constant(float(rate), seconds)
    graph = linear_road(given.road, load, rate)
    if not alternates:
        graph = of_best(graph)
    lowest, highest = break_even(rate)
    return Site(
        graph,
        host_types(given.cloud),
        graph.loads,
        {"positions": float(rate), "updates": given.road.updates * rate},
        Goal(TARGET, TOLERANCE, highest, lowest, RUN),
        settings_of(given.cloud, varies=varies.hosts, seed=seed),
        seed,
    )


def plan_case(case: PlanCase) -> Planned:
    """Let an algorithm plan."""
    site = site_of(case.rate, NONE, SEEDS[0], case.given, alternates=case.alternates)
    problem, conditions = problem_at(site)
    began = time.process_time()
    found, bound = searched(case.algorithm, problem, conditions, case.seconds)
    took = time.process_time() - began
    kinds = [host.type for host in found.deployment.hosts]
    return Planned(
        case,
        found.deployment,
        found.score.profit,
        found.score.mean,
        found.score.value,
        found.score.cost,
        sum(kind.cores for kind in kinds),
        sum(kind.cores * kind.speed for kind in kinds),
        took,
        bound,
    )


def run_case(case: ReactiveCase) -> ReactiveRun:
    """Run a plan for 12 hours."""
    site = site_of(case.rate, case.varies, case.seed, case.given, alternates=case.alternates)
    problem, _ = problem_at(site)
    over_all, _ = problem_at(replace(site, goal=replace(site.goal, over="all")))
    plant = deployed(site, problem, case.plan)
    policy: Policy = policy_of(case.algorithm, site.goal) if case.adapted else Untouched()
    began = time.process_time()
    worth, run = run_site(site, plant, policy)
    load = site.loads["positions"]
    series = np.column_stack(
        [
            worth.ends / 3600,
            [load.rate(end - INSTANT / 2) for end in worth.ends],
            worth.hosts,
            worth.throughput,
            worth.value,
        ]
    )
    return ReactiveRun(
        case,
        worth.mean_throughput,
        worth.mean_waited,
        worth.mean_value(),
        worth.mean_value("all"),
        worth.money,
        worth.profit(problem.line),
        worth.profit(over_all.line, "all"),
        worth.unstable(site.goal),
        float(worth.hosts.mean()),
        time.process_time() - began,
        run.refused,
        at_best(site)[0],
        series,
    )
