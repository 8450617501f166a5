"""Chapter 5 of the thesis, simulated: look-ahead against reactive scheduling.

Runs share the first deployment and differ in policy, horizon and forecast error.
"""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from elastream.core.frames import Floats
from elastream.core.plant import Policy
from elastream.evaluation.trials import prospect_of
from elastream.policies.value_cost.problem import Goal
from elastream.simulator import SimulatedPlant
from elastream_papers.thesis.deployed import (
    INSTANT,
    RUN,
    CloudAssumptions,
    Site,
    at_best,
    deployed,
    host_types,
    problem_at,
    run_site,
    settings_of,
)
from elastream_papers.thesis.lookahead.synthetic import SyntheticAssumptions, break_even, streams, synthetic
from elastream_papers.thesis.reactive.algorithms import policy_of, searched

# forecasters by table name, with their parameters
FORECASTERS: Mapping[str, Mapping[str, Any]] = {"method chosen by back-test": {"forecast": "real"}}
# "CAF ... is same as the classic reactive scheduler", whose two stages do not run "at the same time interval" (pp. 84, 108,
# without numbers: every other round); so do the other policies that average
TURNS: Mapping[str, Any] = {"alternates": 2, "resources": 2}
# beside the thesis's policies: the product's reactive one, CAF with both stages in each round, and PLAStiCC that holds the
# interval's mean
CE, EACH_ROUND, INTERVAL = "ce", "caf, every round", "plasticc, interval"
# policy and parameters of each name
READINGS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (name, TURNS) for name in ("caf", "waaf", "wpa", "wpo", "wpp")},
    EACH_ROUND: ("caf", {}),
    INTERVAL: ("plasticc", {"hold": "interval"}),
}
# a policy's remark on retracted and reversed changes
UNDONE = re.compile(r"so far ([\d,]+) planned changes? retracted, ([\d,]+) enacted")


def contender(policy: str, site: Site, plant: SimulatedPlant, horizon: float, by: str, error: float, bias: float) -> Policy:
    """Return the policy, looking `horizon` seconds ahead; an oracle gets the true future."""
    if policy == CE:
        return policy_of(CE, site.goal)
    name, more = READINGS.get(policy, (policy, {}))
    oracle = {"forecast": "oracle", "error": error, "bias": bias, "spread": "size", "seed": site.seed}
    own = {"horizon": horizon, **more, **(oracle if by == "oracle" else FORECASTERS[by])}
    prospect = prospect_of(plant.context.layout, site.types, site.loads, site.settings, seconds=RUN)
    return policy_of(name, site.goal, **own).prepared(prospect)


def undone(remarks: Iterable[str]) -> tuple[float, float]:
    """Return (retracted, reversed) changes by a run's end, from the remarks."""
    said = [found for each in remarks if (found := UNDONE.search(each))]
    if not said:
        return 0.0, 0.0
    retracted, undid = (float(number.replace(",", "")) for number in said[-1].groups())
    return retracted, undid


HORIZONS = (10, 20, 30, 40, 50, 60)  # minutes of a prediction interval (Figs. 5.3 and 5.4; the text, p. 113, goes to 30)
# mean errors and biases of forecasts (Figs. 5.4 and 5.5)
ERRORS, BIASES = (0.0, 0.05, 0.10, 0.15, 0.20, 0.25), (0.0, -0.05, 0.05)
FIGURE_5_5 = 20  # minutes ahead in Fig. 5.5
REACTIVE = ("caf", "waaf", EACH_ROUND, CE)  # reactive policies: one run for all horizons
POLICIES = ("plasticc", "caf", "waaf", "wpa", "wpo", "wpp")  # the thesis's
BESIDE = (CE, EACH_ROUND)
# clouds beside the assumed one: start time and sizes of hosts decide the value of a forecast
CLOUDS: Mapping[str, Mapping[str, float]] = {
    "hosts start in 10 s": {"start": 10.0},
    "hosts start in 600 s": {"start": 600.0},
    "m1.small alone": {"sizes": 1.0},
}
SEEDS = (1, 2, 3)  # three runs (p. 110), each with its own dataflow, loads and hosts
TARGET, TOLERANCE = 0.8, 0.05


@dataclass(frozen=True)
class LookaheadAssumptions:
    """All assumptions on dataflow, loads and cloud."""

    flow: SyntheticAssumptions = field(default_factory=SyntheticAssumptions)
    cloud: CloudAssumptions = field(default_factory=CloudAssumptions)


@dataclass(frozen=True, slots=True)
class Foresight:
    """A forecaster and its error. by: `"oracle"`, or a real one. error: mean size; bias: of the oracle (pp. 112-113)."""

    by: str = "oracle"
    error: float = 0.0
    bias: float = 0.0


@dataclass(frozen=True, slots=True)
class LookaheadCase:
    """A run. horizon: minutes."""

    policy: str
    horizon: int
    seed: int
    forecast: Foresight = field(default_factory=Foresight)
    assumptions: LookaheadAssumptions = field(default_factory=LookaheadAssumptions)


@dataclass(frozen=True, slots=True)
class LookaheadRun:
    """Results of a case.

    throughput: of arrivals; waited: with backlogs (Eq. 4.4); worst: its lowest by interval; unstable: chi.
    retracted, reversed: changes withdrawn, undone. most: approximate upper profit (`at_best`). series: (hours, hosts,
    throughput, value).
    """

    case: LookaheadCase
    throughput: float
    waited: float
    worst: float
    value: float
    cost: float
    profit: float
    unstable: int
    hosts: float
    retracted: float
    reversed: float
    seconds: float
    refused: int
    most: float
    series: Floats


def site_of(seed: int, assumptions: LookaheadAssumptions) -> Site:
    """Return the synthetic dataflow of a seed, its loads and its hosts."""
    loads = streams(seed)
    graph = synthetic(assumptions.flow, loads, seed)
    lowest, highest = break_even(assumptions.flow, graph)
    first = {name: load.count(INSTANT) / INSTANT for name, load in loads.items()}
    return Site(
        graph,
        host_types(assumptions.cloud),
        loads,
        first,
        Goal(TARGET, TOLERANCE, highest, lowest, RUN),
        settings_of(assumptions.cloud, varies=True, seed=seed),
        seed,
    )


@cache
def _most(seed: int, assumptions: LookaheadAssumptions) -> float:
    return at_best(site_of(seed, assumptions))[0]


def run_case(case: LookaheadCase) -> LookaheadRun:
    """Deploy by CE's first plan (p. 105), then adapt for 12 hours."""
    began = time.process_time()
    site = site_of(case.seed, case.assumptions)
    problem, conditions = problem_at(site)
    found, _ = searched("ce", problem, conditions, 0.0)
    plant = deployed(site, problem, found.deployment)
    policy = contender(
        case.policy, site, plant, case.horizon * 60.0, case.forecast.by, case.forecast.error, case.forecast.bias
    )
    worth, run = run_site(site, plant, policy)
    return LookaheadRun(
        case,
        worth.mean_throughput,
        worth.mean_waited,
        worth.worst(round(case.horizon * 60.0 / INSTANT)),
        worth.mean_value(),
        worth.money,
        worth.profit(problem.line),
        worth.unstable(site.goal),
        float(worth.hosts.mean()),
        *undone(decision.note for decision in run.decisions),
        time.process_time() - began,
        run.refused,
        _most(case.seed, case.assumptions),
        np.column_stack([worth.ends / 3600, worth.hosts, worth.throughput, worth.value]),
    )
