"""Operators with instances of their own under the default policy, closed loop on the simulator."""

import pytest

from elastream.core.action import LeaseHost, SwitchAlternate
from elastream.core.hosts import Billing, HostType
from elastream.dataflow.operators import Alternate, Kind, Operator
from elastream.evaluation.compare import compare
from elastream.loads import constant, steps
from elastream.policies.threshold import Threshold
from elastream.settings import SimulateSettings
from elastream.simulator import Emissions, Settings, Travel, make_plant
from support.policy_run import driven
from support.simulated_plants import between_ends, chain, operator

BY_SECOND, BY_HOUR = Billing(1.0, 60.0), Billing(3600.0)


def two(cores=0.5):
    costs = {"parse": 0.00015, "enrich": 0.00025}
    return between_ends(*(operator(name, cost / cores, cores) for name, cost in costs.items()), name="two")


def trial(load, *, cores=0.5, billing=BY_SECOND, max_hosts=80):
    return compare(
        two(cores),
        {"threshold": Threshold()},
        SimulateSettings(
            host_types=[HostType("small", 1.0, billing=billing, start=60.0)],
            load=load,
            target_latency=30.0,
            max_hosts=max_hosts,
            period=15.0,
        ),
        constants=Settings(monitor=15.0, travel=Travel.COHORTS),
    ).trials[0]


@pytest.mark.parametrize("cores", [0.25, 1.0])
def test_hosts_follow_the_load_up_and_down(cores):
    found = trial(steps((4_000, "10min"), (20_000, "10min"), (4_000, "10min")), cores=cores)
    hosts = found.result.series[:, 2]
    assert hosts[70] >= 10
    assert hosts[-1] <= 5
    # A step to the fivefold outruns hosts that take a minute to start: those records are late, no others.
    assert found.compliance > 0.9
    assert found.waiting < 1000


def test_a_host_billed_by_the_hour_goes_back_when_its_hour_ends():
    found = trial(steps((4_000, "10min"), (20_000, "20min"), (4_000, "60min")), billing=BY_HOUR)
    assert found.result.early_releases == 0
    assert found.result.series[-1, 2] < found.peak_hosts


def test_an_overload_gets_its_hosts_at_once_or_shares_those_there():
    found = trial(constant(10_000, "20min"))
    hosts = found.result.series[:, 2]
    # 4 cores of work at 77 %: 4 and 7 instances of half a core; and for some minutes those for what came before they did.
    assert hosts[1] >= 6, "an overload is answered in the first round"
    assert hosts[60:].min() == hosts[60:].max() == 6
    assert (found.refused, found.waiting < 1000) == (0, True)
    found = trial(constant(10_000, "10min"), max_hosts=3)
    assert found.peak_hosts == 3
    assert found.result.series[-1, 3] == 6


def test_operator_is_sized_by_its_new_alternate_after_a_switch():
    work = Operator("work", Kind.TRANSFORM, (Alternate("quick", cost=0.0001), Alternate("exact", cost=0.002)), cores=0.5)
    plant = make_plant(
        chain(work),
        host_types=[HostType("small", 1.0, billing=BY_SECOND, start=60.0)],
        loads={"source": Emissions.every(60.0, [60 * 1000] * 30, spread=True)},
        settings=Settings(monitor=15.0, travel=Travel.COHORTS),
        max_hosts=20,
        target_latency=30.0,
    )
    policy = Threshold()
    *_, (_, plan) = driven(plant, policy, range(15, 615, 15))
    assert len(plant.observe().leases) == 1
    plant.switch([SwitchAlternate("work", "exact")])
    plan = policy.plan(plant.observe(), plan.memory)
    # Two cores of work at 77 %: known from what is declared, before a record was processed so.
    assert sum(isinstance(action, LeaseHost) for action in plan.actions) >= 2
