"""The simulated Linear Road dataflow: what the thesis gives is as it gives it, and what is assumed fits the rest of it."""

from elastream.core.qos import offered_rates
from elastream.loads import constant
from elastream_papers.harness.assumptions import FACTORS, assumption_table, values, variations
from elastream_papers.thesis.reactive.linear_road import (
    CONGESTION,
    OPERATORS,
    TRAVEL_TIMES,
    LinearRoadAssumptions,
    linear_road,
)


def work(rate, congestion="neighbours", travel="historical", assumptions=None):
    """Cores of speed 1 that each operator works at `rate` reports/s."""
    graph = linear_road(assumptions or LinearRoadAssumptions(), constant(rate, 60), rate)
    chosen = {"congestion": congestion, "travel_times": travel}
    active = {
        operator.name: next(a for a in operator.alternates if a.name == chosen.get(operator.name, a.name))
        for operator in graph.operators
        if operator.alternates
    }
    rates = {name: load.rate(0.0) for name, load in graph.loads.items()}
    arriving = offered_rates(graph, rates, {name: each.selectivity for name, each in active.items()})
    return {name: arriving[name] * each.cost for name, each in active.items()}


def test_it_has_the_eight_operators_and_the_alternates_of_figure_4_5():
    graph = linear_road(LinearRoadAssumptions(unit=1.0), constant(50, 60), 50)
    working = [operator for operator in graph.operators if operator.alternates]
    assert [operator.name for operator in working] == list(OPERATORS)
    for name, table in (("congestion", CONGESTION), ("travel_times", TRAVEL_TIMES)):
        alternates = graph.by_name[name].alternates
        assert [(a.value, a.cost, a.selectivity) for a in alternates] == list(table.values())
    assert list(CONGESTION.values()) == [(1.0, 1.2, 1.0), (0.8, 0.8, 1.0), (0.5, 0.8, 0.5)]
    assert list(TRAVEL_TIMES.values()) == [(0.6, 0.3, 1.0), (1.0, 0.5, 1.0)]


def test_every_assumption_has_a_unit_and_a_reason_and_can_be_varied():
    assumptions = LinearRoadAssumptions()
    assert all(all(row) for row in assumption_table(assumptions).rows)
    for (name, _), varied in variations(assumptions).items():
        if name not in ("record", "updates"):
            assert sum(work(50, assumptions=varied).values()) != sum(work(50).values())
    assert len(variations(assumptions)) == len(FACTORS) * len(values(assumptions))
