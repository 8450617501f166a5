"""Load figures where one of several queries falls behind; and dataflows that the default policy once failed on."""

import math
from dataclasses import replace

import pytest

from elastream.core.frames import Frame
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation, Sample
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.policies.common.load_history import LoadHistory
from elastream.policies.common.sizing import SizingInputs
from elastream_papers.liveness.runs import tried
from elastream_papers.liveness.scenarios import LivenessCase


def chained() -> Graph:
    """Two queries: a source that only writes, and an operator that reads what it wrote."""
    heavy = Operator("heavy", Kind.TRANSFORM, (Alternate("heavy"),))
    return Graph(
        "chained",
        (Operator("source", Kind.SOURCE), heavy, Operator("sink", Kind.SINK)),
        (Edge("source", "heavy", durable="parquet"), Edge("heavy", "sink")),
    )


def figures(processed: float, busy: float, waiting: list[float], arriving: float = 1000.0) -> SizingInputs:
    """Load figures at the last of rounds two seconds apart, after which `waiting` records wait for the second query."""

    def operators(queue: float) -> Frame:
        return Frame(
            ("source", "heavy"),
            {
                Metric.ARRIVAL_RATE: (arriving, arriving),
                Metric.PROCESSED_RATE: (arriving, processed),
                Metric.BUSY_CORES: (0.0, busy),
                Metric.BACKLOG: (0.0, queue),
            },
        )

    rounds = [Sample(2.0 * n, operators(queue)) for n, queue in enumerate(waiting)]
    history = Observation(
        2.0 * len(waiting) - 2.0,
        Context(lay_out(chained())),
        operators=rounds[-1].operators,
        history=tuple(rounds[:-1]),
    )
    return SizingInputs(history, LoadHistory.after(None, history, 120.0, 0.0), 10.0, 2.0)


def test_record_work_counts_in_the_query_that_falls_behind():
    assert figures(250.0, 1.0, [0.0] * 6).cores(1000.0) == pytest.approx(4.0)


def test_queries_that_keep_up_count_by_source_records():
    assert figures(1000.0, 3.0, [0.0] * 6).cores(1000.0) == pytest.approx(3.0)


def test_query_with_a_growing_queue_is_behind():
    for processed in (800.0, 1100.0, math.nan):
        assert figures(processed, 1.0, [0.0, 400.0, 800.0, 1200.0]).behind == pytest.approx(1.25)
    assert figures(800.0, 1.0, [0.0, 400.0, 400.0, 800.0]).behind == 1.0
    assert figures(0.0, math.nan, [0.0, 2000.0, 4000.0, 6000.0]).behind == 2.0


def test_insufficient_cores_are_remembered_for_similar_rates():
    seen = replace(figures(800.0, 1.0, [0.0]).history, shortfall=(8.0, 1000.0, 100.0))
    assert [seen.insufficient(200.0, rate) for rate in (800.0, 950.0, 2000.0)] == [0.0, 8.0, 8.0]
    assert seen.insufficient(2000.0, 1000.0) == 0.0


def test_records_are_queued_only_if_they_waited_in_each_round():
    assert figures(1000.0, 1.0, [5000.0] * 4).queued(4.0)
    assert not figures(1000.0, 1.0, [5000.0, 0.0, 5000.0, 5000.0]).queued(4.0)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(LivenessCase(123, "threshold", True), id="one of two queries falls behind"),
        pytest.param(LivenessCase(125, "threshold", False), id="instances on hosts of two speeds"),
    ],
)
def test_dataflow_of_an_earlier_failure_comes_to_rest(case):
    found = tried(case)
    assert not found.silent
    assert not found.broken
