"""The Linear Road example as running queries: alternates are switched on the way, and every row is that of plain loops."""

from dataclasses import replace

import linear_road
import pytest
from congestion import History
from linear_road import Plan
from road_check import check
from test_compile import Run
from traffic import Road

from elastream.core.observation import Composition
from elastream.loads import constant, dues

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_every_row_is_that_of_plain_loops_whichever_alternates_ran(local_spark, tmp_path):
    plan = Plan(constant(1600, 0.5), faster=480, road=Road(expressways=1, queries=0.05, accident_every=60))
    flow = linear_road.dataflow(plan, tmp_path / "results")
    begun = Composition.default(flow.graph, {"lines": 2})
    run = Run.start(local_spark, flow, tmp_path, begun)
    run.until(lambda: run.taken() > 0)
    run.switch(replace(begun, alternates={**begun.alternates, "congestion": "sparse", "travel_times": "historical"}))
    run.finish(len(plan.lines))
    due = dues(plan.load, range(len(plan.lines)))
    checked = check(plan.lines, due, History.of(), tmp_path / "results", run.directory, flow.graph)
    assert checked.wrong == ()
    assert all(checked.spoke[operator] for operator in ("congestion", "travel_times"))
    assert min(checked.notices, checked.accounts, checked.answers) > 0
    assert all((waits > 0).all() for waits, _ in checked.responses.values())
