"""Who sends whom how much is arithmetic on sizes that Spark keeps; here they are written by hand."""

import math

import numpy as np
import pytest

from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.spark.telemetry.stage_load import StageLoad
from elastream.spark.telemetry.traffic import Traffic, read_flows


def load(stage, executor, task, parents=(), ranks=(), seconds=2.0, batch=7):
    zeros = np.zeros(len(executor))
    return StageLoad(
        batch, stage, parents, ranks, False, seconds, 100.0, executor, np.array(task), *(zeros for _ in range(7))
    )


SOURCE = load(1, ("a", "b"), (11, 12))
FIRST = load(2, ("a", "b", "b"), (21, 22, 23), parents=(1,), ranks=(0,))
SECOND = load(3, ("b", "a", "b"), (31, 32, 33), parents=(2,), ranks=(1,))
LOADS = (SOURCE, FIRST, SECOND)
LINES = [
    ["21", "a", "1,2,3"],
    ["11", "a", "10,20,30"],
    ["21", "b", "4,5,6"],
    ["11", "b", "40,50,60"],
    ["21", "b", "7,8,9"],
]
NAMES = {0: "distinct", 1: "count"}
TASKS = [TaskId(name, index) for name in ("count", "distinct") for index in range(3)]


def traffic():
    found = Traffic(None)
    found.add("words", NAMES, read_flows(LINES, LOADS))
    return found


def test_sizes_are_dealt_out_to_the_stages_that_wrote_and_read_them():
    into_first, into_second = read_flows(LINES, LOADS)
    assert (into_first.sender, into_first.receiver) == (SOURCE, FIRST)
    assert into_first.bytes.tolist() == [[10, 20, 30], [40, 50, 60]]
    assert (into_second.sender, into_second.receiver) == (FIRST, SECOND)
    assert into_second.bytes.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_shuffle_with_an_output_missing_is_left_out():
    assert [flow.receiver for flow in read_flows(LINES[:-1], LOADS)] == [FIRST]


def test_bytes_between_places_add_up_to_all_bytes_sent():
    into_first, _ = read_flows(LINES, LOADS)
    assert into_first.between({"a": 0, "b": 1}, 2).tolist() == [[10, 50], [40, 110]]
    assert into_first.between({"a": 1}, 2).tolist() == [[0, 0], [0, 10]]
    assert into_first.between({"a": 0, "b": 0}, 1).tolist() == [[210]]


def test_between_hosts_what_stays_is_on_the_diagonal():
    found = traffic().between({"a": "h1", "b": "h2"}, ("h1", "h2"))
    # Into the first 10 and 110 stay, into the second 2 and 4 + 6 + 7 + 9.
    assert found.tolist() == pytest.approx(np.array([[12, 54], [53, 136]]) / 2)


def test_stateful_tasks_exchange_by_pairs_and_their_feed_has_no_host():
    exchange = traffic().exchange(TASKS, now=103.0)
    assert exchange.known
    assert exchange.age == pytest.approx(3.0)
    rates = {(s, t): r for s, t, r in zip(exchange.source, exchange.target, exchange.rate, strict=True)}
    assert rates[-1, 3] == pytest.approx((10 + 40) / 2.0)  # into distinct#0
    assert rates[4, 2] == pytest.approx(6 / 2.0)  # distinct#1 to count#2
    assert exchange.rate.sum() == pytest.approx((210 + 45) / 2.0)


def test_an_unknown_receiver_is_left_out_and_an_unknown_sender_has_no_host():
    exchange = traffic().exchange(TASKS[:3], now=100.0)
    assert set(exchange.source.tolist()) == {-1}
    assert exchange.rate.sum() == pytest.approx(45 / 2.0)


def test_links_are_reported_in_both_directions_with_what_they_can_carry():
    links = traffic().links({"a": "h1", "b": "h2"}, ("h1", "h2"), capacity=1e6)
    assert links.ids == ("h1>h2", "h2>h1")
    # Into the first: 20 + 30 from a to b; into the second: 1 + 3.
    assert links.column(Metric.TRAFFIC).tolist() == pytest.approx([(50 + 4) / 2, (40 + 5 + 8) / 2])
    assert links.column(Metric.BANDWIDTH).tolist() == [1e6, 1e6]


def test_what_was_not_measured_is_unknown_and_not_nothing():
    nothing = Traffic(None)
    assert not nothing.exchange(TASKS, now=0.0).known
    assert math.isnan(nothing.links({"a": "h1"}, ("h1", "h2"), math.nan).value("h1>h2", Metric.TRAFFIC))
    first = Traffic(None)
    first.add(
        "words",
        NAMES,
        read_flows(LINES, tuple(load(x.stage, x.executor, x.task, x.parents, x.ranks, math.nan) for x in LOADS)),
    )
    assert not first.exchange(TASKS, now=0.0).known


def test_named_tasks_without_state_have_rows_of_their_own():
    first = load(1, ("a", "b"), (11, 12), ranks=(-1,))
    found = Traffic(None)
    found.add("words", {**NAMES, -1: "source"}, read_flows(LINES, (first, FIRST, SECOND)))
    exchange = found.exchange([*TASKS, TaskId("source", 0), TaskId("source", 1)], now=100.0)
    rates = {(s, t): r for s, t, r in zip(exchange.source, exchange.target, exchange.rate, strict=True)}
    assert (rates[6, 3], rates[7, 3]) == (10 / 2.0, 40 / 2.0)
    assert -1 not in exchange.source
