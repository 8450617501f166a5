"""The cluster that never changes, run against the fake plant."""

from conformance.fake_plant import FakePlant
from elastream.model.action import LeaseHost, SetParallelism
from elastream.planning.policies.static import Static


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
