"""Nexmark's events: equal bytes however a range is split; the public generator's proportions, hot keys and prices."""

import time
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from elastream.bench.nexmark.events import BASE_TIME_S, FIRST_ID, KINDS, SCHEMAS, Events, count
from elastream.bench.sources import EventReader, closed
from elastream.errors import InputError
from elastream.loads import constant, sine
from elastream.spark.dataflow.readers import Steering
from elastream.spark.dataflow.sources import LOAD

SPLIT = Events(seed=7, load=sine("1k/s", "9k/s", "3s"), disorder=0.4, late_share=0.01, late_by=6.0)
EVENTS = 60_000


def in_bytes(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def bids():
    return Events().table("bid", 0, EVENTS)


@given(kind=st.sampled_from(KINDS), edges=st.lists(st.integers(0, 4000), min_size=2, max_size=6), rows=st.integers(7, 900))
def test_a_resumed_split_equals_an_unbroken_one_byte_for_byte(kind, edges, rows):
    edges = sorted(edges)
    parts = [
        pa.Table.from_batches(SPLIT.batches(kind, first, last, rows), SCHEMAS[kind]) for first, last in pairwise(edges)
    ]
    assert in_bytes(pa.concat_tables(parts)) == in_bytes(SPLIT.table(kind, edges[0], edges[-1]))


@given(events=st.integers(0, 10_000))
def test_kinds_add_up_to_all_events(events):
    assert sum(count(kind, events) for kind in KINDS) == events


def test_of_fifty_events_one_is_a_person_and_three_are_auctions():
    assert [Events().table(kind, 0, 5000).num_rows for kind in KINDS] == [100, 300, 4600]


def test_half_of_the_bids_go_to_the_hot_auction(bids):
    assert np.mean(bids["auction"].to_numpy() % 100 == 0) == pytest.approx(0.505, abs=0.01)


def test_three_quarters_of_the_bids_come_from_the_hot_bidder(bids):
    assert np.mean(bids["bidder"].to_numpy() % 100 == 1) == pytest.approx(0.75, abs=0.02)


def test_prices_are_log_uniform(bids):
    exponents = np.log10(bids["price"].to_numpy() / 100) / 6
    assert 0 <= exponents.min() < exponents.max() <= 1
    assert np.quantile(exponents, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.02)


def test_four_channels_get_half_of_the_bids_and_have_no_id(bids):
    hot = pc.is_in(bids["channel"], pa.array(["Google", "Facebook", "Baidu", "Apple"]))
    assert pc.mean(hot).as_py() == pytest.approx(0.5, abs=0.01)
    assert not pc.any(pc.match_substring(bids.filter(hot)["url"], "channel_id")).as_py()
    with_id = pc.match_substring(bids.filter(pc.invert(hot))["url"], "channel_id")
    assert pc.mean(with_id).as_py() == pytest.approx(0.9, abs=0.02)


def test_bids_name_persons_and_auctions_near_their_own_number():
    events = Events()
    late = events.table("bid", 500_000, 500_050)
    assert pc.min_max(late["auction"]).as_py()["min"] >= FIRST_ID + 30_002 - 100
    assert FIRST_ID + 10_000 - 1000 <= pc.min(late["bidder"]).as_py() <= FIRST_ID + 10_010


def test_auctions_expire_within_twice_the_time_of_the_events_in_flight():
    auctions = Events().table("auction", 0, 10_000)
    lengths = pc.subtract(auctions["expires"].cast(pa.int64()), auctions["date_time"].cast(pa.int64())).to_numpy()
    assert 1000 <= lengths.min() < lengths.max() <= 334_000
    assert lengths.max() <= Events().longest_auction * 1e6


def test_event_times_follow_the_load():
    bids = Events(load=constant("50/s")).table("bid", 0, 150)
    seconds = bids["date_time"].cast(pa.int64()).to_numpy() // 1_000_000 - BASE_TIME_S
    assert [int(np.sum(seconds == second)) for second in range(3)] == [46, 46, 46]


def test_disorder_and_late_events_only_move_times_back():
    plain, moved = (each.table("bid", 0, 10_000) for each in (Events(), Events(disorder=0.5, late_share=0.1, late_by=60.0)))
    back = (plain["date_time"].cast(pa.int64()).to_numpy() - moved["date_time"].cast(pa.int64()).to_numpy()) / 1e6
    assert 0 <= back.min() < back.max() <= 60.5
    assert np.mean(back >= 60) == pytest.approx(0.1, abs=0.01)
    assert moved.drop_columns("date_time").equals(plain.drop_columns("date_time"))


@given(kind=st.sampled_from(KINDS), events=st.integers(0, 400))
def test_events_before_the_next_of_a_kind_are_counted(kind, events):
    sequence = Events(load=constant("10/s", lasts=40.0))
    got = count(kind, events)
    reached = sequence.reached(kind, got)
    assert count(kind, reached) == got
    assert reached == 400 or count(kind, reached + 1) == got + 1
    assert sequence.reached(kind, count(kind, 400) + 1) == 401


def test_seeds_give_different_events():
    assert not Events(seed=1).table("bid", 0, 100).equals(Events(seed=2).table("bid", 0, 100))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"late_share": 2.0}, "a share of 2 late events"), ({"disorder": -1.0}, "cannot be -1 s or 0 s late")],
)
def test_settings_without_sense_are_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        Events(**settings)


def test_a_batch_takes_all_events_that_are_due(tmp_path):
    (tmp_path / LOAD).write_bytes(cloudpickle.dumps(closed(constant("1000/s", lasts=10.0))))
    steering = Steering("bid", tmp_path / "wanted.json")
    reader = EventReader(tmp_path, steering, SCHEMAS["bid"], tmp_path / "commits", "bid")
    start = {**reader.initialOffset(), "started": time.time() - 60.0}
    assert reader.plan(start)["n"] == 10_001, "and the closing row"
