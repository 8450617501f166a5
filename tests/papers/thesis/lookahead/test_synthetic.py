"""The synthetic dataflow of Figure 5.2, and its loads."""

import pytest

from elastream.core.qos import offered_rates
from elastream.dataflow.operators import Kind
from elastream_papers.thesis.lookahead.synthetic import SyntheticAssumptions, break_even, streams, synthetic

GIVEN = SyntheticAssumptions()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_has_thirty_operators_and_forty_five_alternates(seed):
    graph = synthetic(GIVEN, streams(seed, 3600.0), seed)
    working = [each for each in graph.operators if each.kind is Kind.TRANSFORM]
    assert len(working) == 30
    assert sum(len(each.alternates) for each in working) == 45
    assert {len(each.alternates) for each in working} == {1, 2, 3}
    assert (len(graph.sources), len(graph.sinks)) == (3, 3)


def test_the_first_alternate_is_the_best_and_the_dearest():
    for operator in synthetic(GIVEN, streams(1, 3600.0), 1).operators:
        for other in operator.alternates[1:]:
            assert other.value < operator.alternates[0].value == 1.0
            assert other.cost < operator.alternates[0].cost


def test_the_same_seed_gives_the_same_dataflow_and_another_one_another():
    one, two = (synthetic(GIVEN, streams(1, 3600.0), 1) for _ in range(2))
    assert one == two
    assert one.operators != synthetic(GIVEN, streams(1, 3600.0), 2).operators


def test_every_stream_reaches_an_output():
    graph = synthetic(GIVEN, streams(4, 3600.0), 4)
    rates = offered_rates(graph, {source.name: 10.0 for source in graph.sources}, {})
    assert sum(rates[sink.name] for sink in graph.sinks) == pytest.approx(30.0)


def test_loads_are_between_two_and_seventy_five_and_the_noise():
    loads = streams(1, 86400.0)
    for load in loads.values():
        rates = [load.rate(60.0 * minute + 30) for minute in range(1440)]
        assert 0.8 * 2 <= min(rates) < 4
        assert 70 < max(rates) <= 1.2 * 75
    assert len({load.rate(3600.0) for load in loads.values()}) == 3


def test_the_lowest_value_breaks_even_at_half_of_the_highest_s_cost():
    lowest, highest = break_even(GIVEN, synthetic(GIVEN, streams(1, 3600.0), 1))
    assert highest == 2 * lowest > 0
