"""What is made of queries and measurements of the placement experiments on Spark; running them takes minutes."""

import math

import pytest

from elastream_papers.placing.on_spark import Moves, PlacementFigures

SENT = ((100.0, 10.0, 20.0), (30.0, 100.0, 40.0), (0.0, 0.0, 100.0))
PHASE = PlacementFigures((0.8, 0.4, 0.6), (0.1, 0.2, 0.3), SENT, 300.0, 100.0, 1000.0, 0.5, Moves(3, 1))


def test_figures_are_of_the_hosts_quota_and_links():
    figures = PHASE.metrics
    assert figures["CPU of hosts (mean, of the quota)"] == pytest.approx(0.6)
    assert figures["CPU of hosts (deviation)"] == pytest.approx(math.sqrt(0.08))
    assert figures["links of hosts (mean, of the rate)"] == pytest.approx(0.2)
    assert figures["between hosts, of what tasks with state send each other"] == pytest.approx(0.25)
    assert (figures["state partitions moved"], figures["moves refused"]) == (3, 1)
