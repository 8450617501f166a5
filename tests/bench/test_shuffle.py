"""ShuffleBench's task: records, consumers, and the check of their events."""

import itertools

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.bench.arms import Cluster, arm_of
from elastream.bench.runs import Setup, run
from elastream.bench.shuffle import COUNTERS, Consumer, Records, Shuffle
from elastream.clouds.provider import SMALL
from elastream.errors import InputError
from elastream.loads import constant

RECORDS = Records(constant("1000/s", lasts=2.0), size=20)
TASK = Shuffle(RECORDS, consumers=10, selectivity=0.3, state_bytes=1000, every=7)


class Handle:
    """State of one consumer, as Spark keeps it."""

    def __init__(self):
        self.value = None

    def getValueState(self, name, schema):
        return self

    def get(self):
        return self.value

    def update(self, value):
        self.value = value


def table(first, last):
    return pa.Table.from_batches(RECORDS.batches("record", first, last), RECORDS.schema("record"))


def events(task, ends):
    """Run consumers over batches that end at `ends`, each batch in reverse order."""
    consumers, rows = {}, []
    for first, last in zip([0, *ends], ends, strict=False):
        frame = table(first, last).to_pandas()[::-1]
        frame = frame[frame["class"] < round(task.selectivity * 2**31)]
        keys = frame["class"] * task.consumers // round(task.selectivity * 2**31)
        for key, part in frame.groupby(keys):
            if key not in consumers:
                consumers[key] = (Consumer(task.every, task.state_each), Handle())
                consumers[key][0].init(consumers[key][1])
            rows += consumers[key][0].handleInputRows((key,), iter([part]), None)
    return pd.concat(rows), {key: handle.value for key, (_, handle) in consumers.items()}


@given(cuts=st.lists(st.integers(0, 300), max_size=4).map(sorted))
def test_records_are_the_same_in_any_parts(cuts):
    edges = [0, *cuts, 300]
    parts = [table(first, last) for first, last in itertools.pairwise(edges)]
    assert pa.concat_tables(parts).to_pydict() == table(0, 300).to_pydict()
    assert {len(each) for each in table(0, 300)["payload"].to_pylist()} == {20}


@given(cuts=st.lists(st.integers(1, 1999), max_size=5, unique=True).map(sorted))
def test_consumers_give_the_answer_whatever_the_batches(cuts):
    rows, states = events(TASK, [*cuts, 2000])
    assert len(rows) > 50
    assert not TASK.difference(rows)
    assert {len(state[-1]) for state in states.values()} == {100 - COUNTERS}


def test_a_lost_a_doubled_and_a_changed_event_are_found():
    rows, _ = events(TASK, [2000])
    assert (TASK.difference(rows[1:]).missing, TASK.difference(rows[1:]).surplus) == (1, 0)
    assert (TASK.difference(pd.concat([rows, rows[:1]])).missing, TASK.difference(pd.concat([rows, rows[:1]])).surplus) == (
        0,
        1,
    )
    assert TASK.difference(rows.assign(sum=rows["sum"] + (rows.index == 0)))


def test_about_the_selected_share_of_records_has_a_consumer():
    rows, _ = events(TASK, [2000])
    assert 7 * len(rows) == pytest.approx(0.3 * 2000, abs=70 + 60)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"selectivity": 1.5}, "it must lie above 0"), ({"state_bytes": 100}, "1000 consumers need 24000 at least")],
)
def test_a_task_without_sense_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        Shuffle(RECORDS, **settings)


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.slow
def test_events_are_the_answer_on_a_local_host():
    task = Shuffle(Records(constant("200/s", lasts=20.0)), consumers=50, state_bytes=100_000)
    (outcome,) = run(Setup(Cluster(SMALL, 1, 1), target_latency=10.0), [[task]], arm_of("fixed:1"), print)
    assert (outcome.correct, outcome.remark) == (True, "")
    assert outcome.service.state_bytes > 50_000
