"""Chapter 4 of the thesis, simulated: static and adapted deployments of Linear Road.

Every algorithm plans for each mean rate; its plan runs for 12 hours under varying hosts and rates.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from elastream.core.frames import Floats
from elastream.core.plant import Policy
from elastream.loads import constant
from elastream.policies.placements import Untouched
from elastream.policies.value_cost.problem import Deployment, Goal, Over
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
from elastream_papers.thesis.reactive.algorithms import parameters, policy_of, searched
from elastream_papers.thesis.reactive.linear_road import LinearRoadAssumptions, break_even, linear_road
from elastream_papers.thesis.reactive.printed import PrintedCentralised

RATES = (10, 20, 50, 100, 500, 1000, 2000)  # mean messages/s of the runs (Figs. 4.6 and 4.7(c))
TABLED = 50  # of Table 4.2
PLANNED = (*RATES, 4000, 8000)  # of the plans (Fig. 4.7)
ALGORITHMS = ("exact", "genetic", "ce", "sh")
ADAPTING = ("genetic", "ce", "sh")  # the thesis's policies that adapt; the exact model plans once
OWN = "ce, ours"  # the product's CE beside Algorithm 4 as printed; it begins with CE's plan
GREEDY = ("ce", "sh", OWN)
# m and n, rounds between the stages of alternates and of resources: not "at the same time interval" (p. 84, no numbers)
IN_TURNS = (2, 2)
STAGES = ((1, 1), IN_TURNS, (7, 5))  # beside it: both in each round, and as in the author's program
SEEDS = (1, 2, 3)  # three runs (p. 88), each with its own loads and hosts
TARGET, TOLERANCE = 0.8, 0.05  # relative throughput to hold (p. 90)


@dataclass(frozen=True)
class ReactiveAssumptions:
    """All assumptions on dataflow and cloud."""

    road: LinearRoadAssumptions = field(default_factory=LinearRoadAssumptions)
    cloud: CloudAssumptions = field(default_factory=CloudAssumptions)


@dataclass(frozen=True, slots=True)
class Variation:
    """Variability of a run: host speeds and links, and rates."""

    hosts: bool
    rates: bool


NONE, HOSTS, LOADS, BOTH = Variation(False, False), Variation(True, False), Variation(False, True), Variation(True, True)
COLUMNS: Mapping[str, Variation] = {"neither": NONE, "hosts": HOSTS, "rates": LOADS, "both": BOTH}  # columns of Table 4.2


@dataclass(frozen=True, slots=True)
class PlanCase:
    """A plan for a mean rate. seconds: limit of the exact model. alternates: others than the best may run."""

    algorithm: str
    rate: int
    seconds: float = 60.0
    alternates: bool = True
    assumptions: ReactiveAssumptions = field(default_factory=ReactiveAssumptions)


@dataclass(frozen=True, slots=True)
class Planned:
    """Promised results of a plan.

    cores: of all hosts; speed: cores times speed. seconds: CPU time. bound: of the profit, or NaN.
    """

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
    """A run from a plan, static or adapted. stages: m and n of CE and SH."""

    algorithm: str
    rate: int
    varies: Variation
    adapted: bool
    seed: int
    plan: Deployment
    alternates: bool = True
    assumptions: ReactiveAssumptions = field(default_factory=ReactiveAssumptions)
    stages: tuple[int, int] = IN_TURNS


@dataclass(frozen=True, slots=True)
class ReactiveRun:
    """Results of a case.

    waited: throughput by Eq. 4.4; throughput: the same without waiting messages; unstable: chi. hosts: mean leased.
    most: approximate upper profit (`at_best`). series: (hours, records/s, hosts, throughput, value).
    """

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
    rate: int,
    varies: Variation,
    seed: int,
    assumptions: ReactiveAssumptions,
    *,
    alternates: bool = True,
    seconds: float = RUN,
) -> Site:
    """Return Linear Road at a mean of `rate` position reports a second."""
    load = walk(rate, seed, assumptions.cloud, seconds) if varies.rates else constant(float(rate), seconds)
    graph = linear_road(assumptions.road, load, rate)
    if not alternates:
        graph = of_best(graph)
    lowest, highest = break_even(rate)
    return Site(
        graph,
        host_types(assumptions.cloud),
        graph.loads,
        {"positions": float(rate), "updates": assumptions.road.updates * rate},
        Goal(TARGET, TOLERANCE, highest, lowest, RUN),
        settings_of(assumptions.cloud, varies=varies.hosts, seed=seed),
        seed,
    )


def plan_case(case: PlanCase) -> Planned:
    site = site_of(case.rate, NONE, SEEDS[0], case.assumptions, alternates=case.alternates)
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


OVER: tuple[Over, ...] = ("dynamic", "all")


def _adapting(case: ReactiveCase, goal: Goal) -> Policy:
    stages: dict[str, Any] = dict(zip(("alternates", "resources"), case.stages, strict=True))
    match case.algorithm:
        case "ce":
            return PrintedCentralised(**parameters(goal), **stages)
        case "sh":
            return policy_of("sh", goal, **stages)
    return policy_of("ce" if case.algorithm == OWN else case.algorithm, goal)


def run_case(case: ReactiveCase) -> ReactiveRun:
    """Run a plan for 12 hours."""
    site = site_of(case.rate, case.varies, case.seed, case.assumptions, alternates=case.alternates)
    problem, _ = problem_at(site)
    # A run without alternates is judged on the line of the dataflow that has them.
    whole = site_of(case.rate, case.varies, case.seed, case.assumptions)
    line, line_of_all = (problem_at(replace(whole, goal=replace(whole.goal, over=over)))[0].line for over in OVER)
    plant = deployed(site, problem, case.plan)
    policy: Policy = _adapting(case, site.goal) if case.adapted else Untouched()
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
        worth.profit(line),
        worth.profit(line_of_all, "all"),
        worth.unstable(site.goal),
        float(worth.hosts.mean()),
        time.process_time() - began,
        run.refused,
        at_best(site)[0],
        series,
    )
