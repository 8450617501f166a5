"""What is made of queries and measurements of the placement experiments on Spark; running them takes minutes."""

import math

import pytest

from elastream_papers.placing.on_spark import PARTITIONS, Moves, PlacementFigures, SteadyQuery

SENT = ((100.0, 10.0, 20.0), (30.0, 100.0, 40.0), (0.0, 0.0, 100.0))
PHASE = PlacementFigures((0.8, 0.4, 0.6), (0.1, 0.2, 0.3), SENT, 300.0, 100.0, 1000.0, 0.5, Moves(3, 1))


def test_partitions_cost_by_zipf_in_an_order_drawn_once():
    weights = SteadyQuery("distinct", 100, steps=1000, skew=1.0).weights()
    assert len(weights) == PARTITIONS
    assert sum(weights) == pytest.approx(1000 * PARTITIONS, rel=0.01)
    assert max(weights) == pytest.approx(PARTITIONS * min(weights), rel=0.01)
    assert weights == SteadyQuery("other", 1, steps=1000, skew=1.0).weights()
    assert SteadyQuery("distinct", 100, steps=7).weights() == [7] * PARTITIONS


def test_figures_are_of_the_hosts_quota_and_links():
    figures = PHASE.metrics
    assert figures["CPU of hosts (mean, of the quota)"] == pytest.approx(0.6)
    assert figures["CPU of hosts (deviation)"] == pytest.approx(math.sqrt(0.08))
    assert figures["links of hosts (mean, of the rate)"] == pytest.approx(0.2)
    assert figures["between hosts, of what tasks with state send each other"] == pytest.approx(0.25)
    assert (figures["state partitions moved"], figures["moves refused"]) == (3, 1)


@pytest.mark.parametrize("split", [(0.0, 0.0), (math.nan, math.nan)])
def test_where_tasks_with_state_send_each_other_nothing_no_share_of_it_is_reported(split):
    assert not any(
        "between hosts" in name
        for name in PlacementFigures((1.0,), (0.0,), ((0.0,),), *split, 1.0, 1.0, Moves(0, 0)).metrics
    )
