"""What a simulated run was worth, from what was observed."""

import numpy as np
import pytest

from elastream.core.action import SwitchAlternate
from elastream.core.hosts import Billing, HostType
from elastream.core.observation import Composition
from elastream.core.plant import Plan
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.trials import simulated
from elastream.evaluation.worth import Worth, WorthWatch, dynamic, value_of
from elastream.loads import constant
from elastream.policies.placements import Untouched
from elastream.policies.value_cost.problem import Goal
from elastream.simulator import Settings, SimulatedPlant, Travel, make_plant
from support.simulated_plants import between_ends, operator

GOAL = Goal(0.8, 0.05, 2.0, 1.0, 3600.0)


def flow(selectivity: float = 1.0) -> Graph:
    """A source, an operator with two alternates, one with a single one, and a sink."""
    alternates = (
        Alternate("best", value=0.8, cost=0.1, selectivity=selectivity),
        Alternate("cheap", value=0.4, cost=0.05, selectivity=selectivity),
    )
    return between_ends(Operator("choose", alternates=alternates), operator("work", 0.1))


def plant(graph: Graph, rate: float, *, fused: bool = False, **parallelism: int) -> SimulatedPlant:
    return make_plant(
        lay_out(graph, chained=fused),
        host_types=[HostType("one", cores=8, price=1.0, billing=Billing(3600.0))],
        loads={"source": constant(rate, 7200.0)},
        settings=Settings(monitor=60.0, travel=Travel.COHORTS),
        hosts=1,
        parallelism=parallelism,
    )


def watched(graph: Graph, on: SimulatedPlant, policy: object | None = None, until: float = 3600.0) -> WorthWatch:
    watch = WorthWatch(graph, GOAL, 300.0)
    simulated(on, policy or Untouched(), period=300.0, until=until, look=watch.look)  # type: ignore[arg-type]
    return watch


def worth_of(graph: Graph, on: SimulatedPlant, policy: object | None = None) -> Worth:
    return watched(graph, on, policy).worth()


def test_a_plan_a_fifth_too_small_has_four_fifths_of_the_throughput():
    graph = flow()
    found = worth_of(graph, plant(graph, 25.0, choose=4, work=2))
    assert found.throughput == pytest.approx(0.8, abs=0.01)
    assert len(found.ends) == 12
    assert found.waited == pytest.approx(0.8 / (1 + 0.2 * np.arange(12)), abs=0.02), "the queue grows"
    assert found.ends[-1] == 3600.0


def test_a_plan_that_is_large_enough_has_all():
    graph = flow()
    found = worth_of(graph, plant(graph, 25.0, choose=4, work=4))
    assert found.mean_throughput > 0.98
    assert found.unstable(GOAL) == 12


def test_what_an_operator_would_emit_with_no_limit_counts_its_selectivity():
    graph = flow(selectivity=0.5)
    found = worth_of(graph, plant(graph, 25.0, choose=2, work=4))
    assert found.throughput == pytest.approx(0.8, abs=0.01)


def test_values_are_relative_to_the_best_of_their_operator():
    graph = flow()
    cheap = Composition(alternates={"choose": "cheap"})
    assert value_of(graph, Composition.default(graph)) == 1.0
    assert value_of(graph, cheap) == 0.5
    assert value_of(graph, cheap, "all") == 0.75


def test_the_value_of_an_instant_is_that_of_what_ran_in_it():
    class Cheaper:
        name = "cheaper"

        def plan(self, observation, memory=None):
            return Plan((SwitchAlternate("choose", "cheap"),) if observation.time >= 1800 else ())

    graph = flow()
    found = worth_of(graph, plant(graph, 25.0, choose=4, work=4), Cheaper())
    assert found.value.tolist() == [1.0] * 6 + [0.5] * 6
    assert found.mean_value() == 0.75
    assert found.mean_value("all") == 0.875


def test_profit_is_nothing_on_the_line_between_the_break_even_costs():
    graph = flow()
    watch = watched(graph, plant(graph, 25.0, choose=4, work=4))
    line, found = watch.line, watch.worth()
    assert line is not None
    assert (line.lowest, line.highest, line.at_lowest, line.at_highest) == (0.5, 1.0, 1.0, 2.0)
    assert line.profit(0.75, 1.5) == pytest.approx(0.0)
    assert found.money == 1.0
    assert found.profit(line) == pytest.approx(line.profit(1.0, 1.0))


def test_where_operators_run_together_what_the_application_took_counts():
    graph = flow()
    found = worth_of(graph, plant(graph, 3.0, fused=True))
    assert found.mean_throughput > 0.95


def test_a_dataflow_with_nothing_to_choose_from_is_not_dynamic():
    assert dynamic(flow())
    assert not dynamic(between_ends(operator("work", 0.1)))
