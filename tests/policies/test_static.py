"""The cluster that never changes, run against the fake plant."""

import pytest

from elastream.core.action import LeaseHost, SetParallelism
from elastream.core.hosts import HostType
from elastream.errors import InputError
from elastream.evaluation.compare import compare
from elastream.loads import steps
from elastream.policies.static import Static
from elastream.settings import SimulateSettings
from elastream.simulator import Settings, Travel, make_plant
from support.fake_plant import FakePlant
from support.policy_run import driven
from support.simulated_plants import between_ends, chain, operator


def settle(plant, policy, seconds=20):
    plans = []
    for _ in range(seconds):
        plant.clock.sleep_until(plant.clock.now() + 1)
        plans.append(policy.plan(plant.observe()).actions)
        for action in plans[-1]:
            assert plant.apply(action).succeeded
    return plans


def test_all_hosts_are_leased_at_the_start_and_then_nothing_changes():
    plant = FakePlant(partitions=6)
    plans = settle(plant, Static(3, {"source": 3}, host_type="small"))
    assert plans[0] == (LeaseHost("h2", "small"), LeaseHost("h3", "small"), SetParallelism("source", 3))
    observation = plant.observe()
    assert observation.hosts.column("tasks").tolist() == [2, 2, 2]
    plant.arrival_rate = 1000.0
    assert settle(plant, Static(3, {"source": 3}, host_type="small")) == [()] * 20


def test_a_lost_host_is_replaced():
    plant = FakePlant(hosts=2)
    plant.lose("h1")
    settle(plant, Static(2))
    assert len(plant.observe().usable) == 2


def simulated(hosts, *, fused, rate=1000.0):
    graph = between_ends(operator("light", 0.001), operator("heavy", 0.003))
    load = steps((rate, "300s"), (rate / 10, "300s"))
    return compare(
        graph,
        {"static": Static(hosts)},
        SimulateSettings(
            host_types=[HostType("small", 1.0, start=30.0, slots=10_000)],
            load=load,
            target_latency=30.0,
            fused=fused,
            period=5.0,
        ),
        constants=Settings(monitor=5.0, travel=Travel.COHORTS),
    ).trials[0]


def test_apart_hosts_that_are_full_are_left_as_they_are():
    plant = make_plant(
        chain(operator("first", 0.002, 0.5), operator("second", 0.002, 0.5)),
        host_types=[HostType("small", 1.0, start=10.0)],
        loads={"source": steps((500.0, "300s"))},
        settings=Settings(monitor=5.0, travel=Travel.COHORTS),
    )
    plans = [plan.actions for _, plan in driven(plant, Static(9), range(5, 300, 5))]
    assert plant.observe().tasks.per_host.tolist() == [2] * 9
    assert plans[4:] == [()] * len(plans[4:])


@pytest.mark.parametrize("fused", [True, False])
def test_hosts_are_filled_so_that_they_do_the_work_that_they_could(fused):
    trial = simulated(8, fused=fused)
    assert trial.peak_hosts == 8
    assert trial.waiting < 10
    assert trial.refused == 0
    if not fused:
        assert trial.result.series[-1][3] == 8


def test_the_peak_and_the_mean_of_the_load_give_the_number_of_hosts():
    assert simulated("peak", fused=True).peak_hosts == 6
    assert simulated("mean", fused=True).peak_hosts == 4


def test_any_other_number_of_hosts_is_refused():
    for hosts in (0, -3, "most", True):
        with pytest.raises(InputError, match="not a whole number of 1 or more, 'peak' or 'mean'"):
            Static(hosts)
