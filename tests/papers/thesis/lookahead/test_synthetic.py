"""The synthetic dataflow of Figure 5.2, and its loads."""

import pytest

from elastream.core.qos import offered_rates
from elastream.dataflow.operators import Kind
from elastream_papers.thesis.lookahead.synthetic import SyntheticAssumptions, streams, synthetic

GIVEN = SyntheticAssumptions()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_has_thirty_operators_and_forty_five_alternates(seed):
    graph = synthetic(GIVEN, streams(seed, 3600.0), seed)
    working = [each for each in graph.operators if each.kind is Kind.TRANSFORM]
    assert len(working) == 30
    assert sum(len(each.alternates) for each in working) == 45
    assert {len(each.alternates) for each in working} == {1, 2, 3}
    assert (len(graph.sources), len(graph.sinks)) == (3, 3)
    rates = offered_rates(graph, {source.name: 10.0 for source in graph.sources}, {})
    assert sum(rates[sink.name] for sink in graph.sinks) == pytest.approx(30.0), "every stream reaches an output"


def test_the_first_alternate_is_the_best_and_the_dearest():
    for operator in synthetic(GIVEN, streams(1, 3600.0), 1).operators:
        for other in operator.alternates[1:]:
            assert other.value < operator.alternates[0].value == 1.0
            assert other.cost < operator.alternates[0].cost


def test_the_same_seed_gives_the_same_dataflow_and_another_one_another():
    one, two = (synthetic(GIVEN, streams(1, 3600.0), 1) for _ in range(2))
    assert one == two
    assert one.operators != synthetic(GIVEN, streams(1, 3600.0), 2).operators
