"""On constant input, simulated queues come to the throughput that Eqs. 4.4 to 4.7 say."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.loads import constant
from elastream.policies.value_cost.problem import Goal, capacities, score, throughput
from elastream.policies.value_cost.reading import read
from elastream.simulator import NetworkLink, Settings, Travel, make_plant
from support.property_examples import examples
from support.simulated_plants import chain, operator, travelling

SLOW, QUICK = HostType("slow", cores=4.0), HostType("quick", cores=4.0, speed=2.0)
SECONDS = 300.0


@settings(max_examples=examples(40), deadline=None)
@given(
    rate=st.integers(100, 400),
    costs=st.lists(st.sampled_from([0.002, 0.005, 0.01, 0.02]), min_size=1, max_size=3),
    emits=st.sampled_from([0.5, 1.0, 2.0]),
    instances=st.integers(1, 4),
    kinds=st.permutations([SLOW, SLOW, QUICK]),
)
def test_the_simulator_agrees_with_the_throughput_model(rate, costs, emits, instances, kinds):
    operators = [operator(f"o{n}", cost, selectivity=emits) for n, cost in enumerate(costs)]
    plant = make_plant(
        chain(*operators),
        host_types=[SLOW, QUICK],
        loads={"source": constant(rate, 2 * SECONDS)},
        hosts=[kind.name for kind in kinds],
        parallelism={each.name: instances for each in operators},
        settings=Settings(monitor=10.0, latency=0.0, **travelling(Travel.COHORTS)),
        seconds=2 * SECONDS,
    )
    plant.advance(SECONDS)
    found = read(plant.observe(), Goal(), SECONDS)
    capacity = capacities(found.problem, found.deployment, found.conditions)
    expected = throughput(found.problem, found.deployment.active, capacity, found.conditions)
    plant.advance(2 * SECONDS - 1.0)
    observation = plant.observe()
    for row, name in enumerate(found.problem.operators[:-1]):
        _, processed = observation.series(name, Metric.PROCESSED_RATE, 25)
        assert float(np.mean(processed)) == pytest.approx(expected.processed[0, row], rel=0.03), name
    _, left = observation.series(operators[-1].name, Metric.EMITTED_RATE, 25)
    of_what_came = float(np.mean(left)) / expected.offered[0, -1]
    assert min(1.0, of_what_came) == pytest.approx(expected.fresh[0], rel=0.03)


@pytest.mark.parametrize("wide", [1, 2, 3])
def test_the_simulator_agrees_with_what_links_let_through(wide):
    """One host sends, others take what it sends over a link each; what they do not get is not processed."""
    sender, taker = HostType("sender", cores=1.0), HostType("taker", cores=1.0)
    sends = replace(operator("sends", 0.001), record_bytes=100.0)
    plant = make_plant(
        chain(sends, operator("takes", 0.001)),
        host_types=[sender, taker],
        loads={"source": constant(400, 2 * SECONDS)},
        hosts=["sender"] + ["taker"] * wide,
        parallelism={"sends": 1, "takes": wide},
        settings=Settings(
            monitor=10.0, links={("local", "local"): NetworkLink(0.0, 10_000.0)}, **travelling(Travel.COHORTS)
        ),
        seconds=2 * SECONDS,
    )
    plant.advance(SECONDS)
    found = read(plant.observe(), Goal(), SECONDS)
    expected = score(found.problem, found.deployment, replace(found.conditions, queues=np.zeros(4)))
    assert expected.throughput == pytest.approx([min(1.0, wide * 100 / 400)], rel=0.01)
    plant.advance(2 * SECONDS - 1.0)
    _, processed = plant.observe().series("takes", Metric.PROCESSED_RATE, 25)
    assert float(np.mean(processed)) == pytest.approx(400 * expected.mean, rel=0.03)
