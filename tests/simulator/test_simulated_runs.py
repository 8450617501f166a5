"""Whole runs of the paper's scenario: repeatable, and the same whether items travel alone or in cohorts."""

import numpy as np
import pytest

from elastream.core.action import LeaseHost, SetParallelism
from elastream.core.metrics import Metric
from elastream.core.plant import Plan
from elastream.evaluation.trials import simulated
from elastream.simulator import Settings, Travel, make_plant
from elastream_papers.visp import experiment as visp
from support.simulated_plants import VM, Queues, machines, manufacturing, queueing, travelling

STEPS = [2, 5, 8, 5] * 3
"""Machines of VISP's stepwise pattern."""
ENOUGH = {"O1": 30, "O2": 55, "O3": 14, "O4": 14, "O5": 14, "O6": 108, "O7": 14, "O8": 3, "O9": 25}
"""Instances for eight machines at the durations of Table 2."""


def run(share, travel, seed=1, minutes=40):
    plant = make_plant(
        manufacturing(),
        host_types=[VM],
        loads=machines(STEPS),
        seed=seed,
        settings=Settings(joins=frozenset({"O7"}), **travelling(travel)),
        hosts=24,
        parallelism={name: max(1, int(count * share)) for name, count in ENOUGH.items()},
    )
    plant.advance(60.0 * minutes)
    return plant


class Growing:
    """One more instance of the operator with the longest queue at every planning, on a host of its own if need be."""

    name = "growing"

    def plan(self, observation, memory=None):
        queues = np.nan_to_num(observation.operators.column(Metric.BACKLOG))
        name = observation.operators.ids[int(queues.argmax())]
        wanted = int(observation.operators.value(name, Metric.PARALLELISM)) + 1
        return Plan((LeaseHost(observation.host_name(), "vm"), SetParallelism(name, wanted)))


@pytest.mark.parametrize("queues", Queues)
def test_the_same_seed_gives_the_same_run_bit_for_bit(queues):
    joins = frozenset[str]() if queues is Queues.TASKS else frozenset({"O7"})  # tasks take amounts, which do not wait

    def once(seed):
        plant = make_plant(
            manufacturing(), host_types=[VM], loads=machines(STEPS[:3]), seed=seed, hosts=4,
            **queueing(queues, joins=joins),
        )  # fmt: skip
        return simulated(plant, Growing(), period=60.0, until=720.0).result

    first, second, other = once(1), once(1), once(2)
    assert first == second
    assert np.array_equal(first.series, second.series, equal_nan=True)
    assert first != other


@pytest.mark.parametrize(
    ("share", "points"),
    [
        pytest.param(1.0, 0.01, id="room enough"),
        pytest.param(0.85, 0.01, id="short at the peak"),
        # Nine instances always about to be full wait mostly by chance, which theory overestimates: 1.7 points at real time.
        pytest.param(0.7, 0.02, id="short all the time"),
    ],
)
def test_cohorts_and_single_items_agree_on_the_paper_s_load(share, points):
    items, cohorts = (run(share, travel).result() for travel in (Travel.SINGLE, Travel.COHORTS))
    assert cohorts.judged == pytest.approx(items.judged, rel=0.01)
    assert cohorts.cost == items.cost
    for factor in (1.0, 2.0, 5.0):
        assert cohorts.compliance(factor) == pytest.approx(items.compliance(factor), abs=points)


def test_with_enough_room_nearly_all_items_are_near_real_time():
    result = run(1.0, Travel.SINGLE).result()
    assert result.compliance(2) > 0.99
    assert 0.4 < result.compliance(1) < 0.6


def test_a_starved_operator_misses_its_level_and_gets_a_time_to_adapt():
    plant = run(0.6, Travel.SINGLE, minutes=20)
    assert plant.result().compliance(5) < 0.9
    assert plant.result().time_to_adapt > 0


def test_history_holds_earlier_periods_and_rates_carry_their_age():
    plant = run(1.0, Travel.SINGLE, minutes=2)
    plant.advance(125.0)
    observation = plant.observe()
    times, rates = observation.series("O6", Metric.ARRIVAL_RATE)
    assert [*times[:-1]] == [15.0, 30.0, 45.0, 60.0, 75.0, 90.0, 105.0]
    assert rates[-1] == pytest.approx(2 * 10 / 0.48, rel=0.05)
    assert observation.operators.age(Metric.DURATION) == 5.0
    assert observation.operators.age(Metric.BACKLOG) == 0.0


def test_before_the_first_period_nothing_is_known_but_what_stands():
    observation = run(1.0, Travel.SINGLE, minutes=0).observe()
    assert np.isnan(observation.operators.column(Metric.DURATION)).all()
    assert observation.operators.value("O6", Metric.PARALLELISM) == 108


@pytest.mark.parametrize("minutes", [10, *(pytest.param(minutes, marks=pytest.mark.slow) for minutes in (None, 30, 60))])
@pytest.mark.parametrize("pattern", visp.PATTERNS)
def test_cohorts_and_single_items_agree_within_a_point_at_every_level(pattern, minutes):
    case = visp.VispCase(pattern, "threshold" if minutes is None else "btu", minutes, seed=1)
    planned = Noting(case.policy)
    items = visp.make(case)
    one = simulated(items, planned, period=case.period, until=7200.0).result
    cohorts = visp.make(case, travel=Travel.COHORTS)
    assert "monitor_temperature" in cohorts.network.crowded, "nothing travels in cohorts here"
    other = simulated(cohorts, Repeating(planned.plans), period=case.period, until=7200.0).result
    assert other.judged == pytest.approx(one.judged, rel=0.01)
    assert other.cost == one.cost
    for level in visp.LEVELS.values():
        assert other.compliance(level) == pytest.approx(one.compliance(level), abs=0.01)


class Noting:
    """Another policy whose plans are kept."""

    name = "noting"

    def __init__(self, policy):
        self.policy = policy
        self.plans = []

    def plan(self, observation, memory=None):
        self.plans.append(self.policy.plan(observation, memory))
        return self.plans[-1]


class Repeating:
    """Plans that were made before."""

    name = "repeating"

    def __init__(self, plans):
        self.plans = iter(plans)

    def plan(self, observation, memory=None):
        return next(self.plans)
