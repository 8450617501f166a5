"""A simulated run goes through the loop of live runs, to its end, and a fault in it is raised instead of recorded."""

import pytest

from elastream.core.action import LeaseHost, MoveTask, SetParallelism
from elastream.core.hosts import Billing, HostState, HostType
from elastream.core.plant import Plan
from elastream.core.task_id import TaskId
from elastream.dataflow.stages import lay_out
from elastream.errors import ElastreamError
from elastream.evaluation.trials import simulated
from elastream.policies.placements import Untouched
from elastream.simulator import Emissions, make_plant
from support.simulated_plants import between_ends, operator

HOST = HostType("small", cores=2, billing=Billing(60.0), start=30, stop=5)


GRAPH = between_ends(operator("work", 0.01), name="case")


def plant():
    """Ten records a second for a minute."""
    load = Emissions.every(1.0, [10] * 60, spread=True)
    return make_plant(lay_out(GRAPH, chained=False), host_types=[HOST], loads={"source": load})


class Scripted:
    """Plans what the script has for a time."""

    name = "scripted"

    def __init__(self, script):
        self.script = script

    def plan(self, observation, memory=None):
        return self.script.get(observation.time, Plan())


def test_it_plans_after_each_whole_period_and_goes_on_to_the_end():
    seen = []
    run = simulated(plant(), Untouched(), period=30.0, until=300.0, look=lambda each: seen.append(each.time))
    assert seen == [30.0 * n for n in range(1, 11)]
    assert [decision.time for decision in run.decisions] == seen[:-1]
    assert run.result.seconds == 300.0
    assert run.result.operators["work"].done == 600


def test_the_end_of_a_run_is_no_release_of_a_host():
    simulation = plant()
    run = simulated(simulation, Untouched(), period=30.0, until=90.0)
    assert [lease.state for lease in simulation.ledger] == [HostState.RELEASED]
    assert [lease.state for lease in run.result.ledger] == [HostState.RUNNING]
    assert (run.result.early_releases, run.result.host_seconds) == (0, 90.0)


def test_what_arbitration_and_what_the_plant_refuses_is_counted():
    twice = (LeaseHost("h2", "small"), LeaseHost("h2", "small"))
    nowhere = (MoveTask(TaskId("work", 9), "h1"), SetParallelism("work", 1))
    run = simulated(plant(), Scripted({30.0: Plan(twice), 60.0: Plan(nowhere)}), period=30.0, until=120.0)
    assert run.refused == 3
    assert run.result.leases == 2


@pytest.mark.parametrize("wrong", [Plan((LeaseHost("h2", 7),)), None], ids=str)
def test_a_policy_that_fails_ends_the_run_without_figures(wrong, caplog):
    with pytest.raises(ElastreamError, match="at 60 s of the simulated run: policy scripted failed"):
        simulated(plant(), Scripted({60.0: wrong}), period=30.0, until=120.0)
    assert not caplog.records
