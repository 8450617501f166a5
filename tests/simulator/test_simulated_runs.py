"""Whole runs of the paper's scenario: repeatable, and the same whether items travel alone or in cohorts."""

import numpy as np
import pytest

from elastream.core.action import LeaseHost, SetParallelism
from elastream.core.metrics import Metric
from elastream.core.plant import Plan
from elastream.evaluation.trials import simulated
from elastream.simulator import Settings, Travel, make_plant
from support.simulated_plants import VM, Queues, machines, manufacturing, queueing, travelling

STEPS = [2, 5, 8, 5]
"""Machines of VISP's stepwise pattern."""
ENOUGH = {"O1": 30, "O2": 55, "O3": 14, "O4": 14, "O5": 14, "O6": 108, "O7": 14, "O8": 3, "O9": 25}
"""Instances for eight machines at the durations of Table 2."""


def run(share, travel, minutes=16, grows=False):
    plant = make_plant(
        manufacturing(),
        host_types=[VM],
        loads=machines(STEPS),
        seed=1,
        settings=Settings(joins=frozenset({"O7"}), **travelling(travel)),
        hosts=24,
        parallelism={name: max(1, int(count * share)) for name, count in ENOUGH.items()},
    )
    for minute in range(1, minutes + 1):
        plant.advance(60.0 * minute)
        for name, count in ENOUGH.items() if grows else ():
            plant.apply(SetParallelism(name, max(1, int(count * (share + (1 - share) * minute / minutes)))))
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
            manufacturing(), host_types=[VM], loads=machines(STEPS), seed=seed, hosts=4,
            **queueing(queues, joins=joins),
        )  # fmt: skip
        return simulated(plant, Growing(), period=60.0, until=720.0).result

    first, second, other = once(1), once(1), once(2)
    assert first == second
    assert np.array_equal(first.series, second.series, equal_nan=True)
    assert first != other


@pytest.mark.parametrize(
    ("share", "grows", "points"),
    [
        pytest.param(1.0, False, 0.01, id="room enough"),
        pytest.param(0.8, True, 0.02, id="scaled up"),
        # Nine instances always about to be full wait mostly by chance, which theory overestimates: 1.7 points at real time.
        pytest.param(0.7, False, 0.02, id="short all the time"),
    ],
)
def test_cohorts_and_single_items_agree_on_the_papers_load(share, grows, points):
    items, cohorts = (run(share, travel, grows=grows).result() for travel in (Travel.SINGLE, Travel.COHORTS))
    assert cohorts.judged == pytest.approx(items.judged, rel=0.01)
    assert cohorts.cost == items.cost
    for factor in (1.0, 2.0, 5.0):
        assert cohorts.compliance(factor) == pytest.approx(items.compliance(factor), abs=points)
    if share == 1.0:
        assert items.compliance(2) > 0.99
        assert 0.4 < items.compliance(1) < 0.6
    if share == 0.7:
        assert items.compliance(5) < 0.9
        assert items.time_to_adapt > 0


def test_history_holds_earlier_periods_and_rates_carry_their_age():
    plant = run(1.0, Travel.SINGLE, minutes=0)
    first = plant.observe()
    assert np.isnan(first.operators.column(Metric.DURATION)).all()
    assert first.operators.value("O6", Metric.PARALLELISM) == 108
    plant.advance(125.0)
    observation = plant.observe()
    times, rates = observation.series("O6", Metric.ARRIVAL_RATE)
    assert [*times[:-1]] == [15.0, 30.0, 45.0, 60.0, 75.0, 90.0, 105.0]
    assert rates[-1] == pytest.approx(2 * 10 / 0.48, rel=0.05)
    assert observation.operators.age(Metric.DURATION) == 5.0
    assert observation.operators.age(Metric.BACKLOG) == 0.0
