"""Work of records that pass several queries, whose batches take turns on the same hosts."""

import math
from dataclasses import replace

import pytest

from elastream.policies.common.load_history import LoadHistory
from elastream.policies.common.service import Service
from elastream.policies.common.sizing import SizingInputs
from support.query_chains import in_a_row


def histories(plant, seconds):
    """Yield the load figures of each round, two seconds apart."""
    history = None
    for number in range(1, seconds // 2 + 1):
        plant.advance(2.0 * number)
        observation = plant.observe()
        history = LoadHistory.after(history, observation, 120.0, 0.0)
        yield SizingInputs(observation, history, 10.0, 2.0)


@pytest.mark.parametrize("rate", [40, 120])
@pytest.mark.parametrize("costs", [(0.01, 0.01), (0.002, 0.02), (0.02, 0.002, 0.005)])
def test_work_of_a_record_is_that_in_all_queries_whether_they_keep_up_or_not(costs, rate):
    loads = list(histories(in_a_row(*costs, rates=(rate,) * 200), 200))
    assert [load.work for load in loads[50:]] == pytest.approx([sum(costs)] * len(loads[50:]), rel=0.15)


def test_a_query_reads_as_many_records_as_the_one_before_has_made():
    *_, load = histories(in_a_row(0.01, 0.01, rates=(60,) * 100, selectivity=0.5), 100)
    assert load.work == pytest.approx(0.015, rel=0.1)


def test_records_between_two_queries_count_by_the_work_that_they_have_ahead():
    *_, load = histories(in_a_row(0.015, 0.005, rates=(300,) * 60), 60)
    left = load.history.record.left
    assert left["source"] == pytest.approx(1.0)
    assert left["o1"] == pytest.approx(0.25, rel=0.1)
    frame = load.observation.operators
    waits = [frame.value(name, "backlog") for name in ("source", "o1")]
    assert load.waiting == pytest.approx(waits[0] + left["o1"] * waits[1])


def test_before_the_first_batch_the_work_of_several_queries_is_unknown():
    load = next(histories(in_a_row(0.01, 0.01, rates=(0,) * 10), 4))
    assert math.isnan(load.work)
    assert load.history.record is None


def test_a_record_waits_for_a_batch_of_each_query_and_one_more():
    service = Service(waits=(0.5,) * 20, shortest=0.2)
    assert service.budget(30.0, 1.0) == 28.0
    assert service.budget(30.0, 1.0, in_a_row=3) == pytest.approx(15.0), "four batches take half of the target latency"
    assert service.budget(30.0, None, in_a_row=3) == pytest.approx(30.0 / 5), "without a limit, four fifths"
    assert service.budget(2.0, 1.0, in_a_row=3) == 0.0


def test_queries_that_come_and_go_begin_a_new_account():
    first, then = (list(histories(in_a_row(*costs), 40))[-1] for costs in ((0.01, 0.01), (0.01, 0.01, 0.005)))
    history = LoadHistory.after(first.history, replace(then.observation, time=50.0), 120.0, 0.0)
    assert len(history.queries.names) == 3
    assert history.queries.times.size < then.history.queries.times.size


def test_what_a_query_does_not_tell_is_not_taken_for_no_work():
    *_, load = histories(in_a_row(0.01, 0.01), 60)
    queries, layout = load.history.queries, load.observation.context.layout
    for figure in (1, 4):  # arrivals, core-seconds
        figures = queries.figures.copy()
        figures[figure, 1] = math.nan
        assert replace(queries, figures=figures).of_record(layout) is None
    figures = queries.figures.copy()
    figures[4, 1, -3:] = math.nan
    assert replace(queries, figures=figures).of_record(layout).cores == pytest.approx(0.02, rel=0.15)


def test_a_query_without_records_keeps_no_other_one_unknown():
    *_, load = histories(in_a_row(0.01, 0.01, rates=(40,) * 60, selectivity=0.0), 60)
    assert load.history.record.cores == pytest.approx(0.01, rel=0.15)
