"""Functions with state per key and on windows, without Spark: random switches and time-outs against a plain model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

from elastream.dataflow.key_table import KeyTable
from elastream.dataflow.operators import Form, OnError
from elastream.dataflow.windows import Timeout, Window
from elastream.spark.telemetry.left_out import read_left_out
from elastream.spark.worker import stateful
from elastream.spark.worker.composition import Digit
from elastream.spark.worker.exits import ORDER
from elastream.spark.worker.runner import Implementation, OperatorError, explain_failure
from elastream.spark.worker.stateful import MOMENT, WATCHED, AlternateDigits, KeyedOperator, state_function
from elastream.spark.worker.states import States
from elastream.spark.worker.windows import Grouping
from support.property_examples import examples
from support.walks import in_use

SUM = StructType([StructField("total", LongType()), StructField("n", LongType())])
ALL = StructType([StructField("values", ArrayType(LongType()))])


def emitted(name: str, key: tuple[Any, ...], value: Any) -> pd.DataFrame:
    return pd.DataFrame({"key": [int(key[0])], "by": [name], "value": [str(value)]})


def summed(key, rows, state):
    total, n = state or (0, 0)
    after = (total + int(rows["v"].sum()), n + len(rows))
    return emitted("sum", key, after), after


def gathered(key, rows, state):
    values = (state[0] if state else []) + rows["v"].tolist()
    return emitted("all", key, values), None if sum(values) > 60 else (values,)


def newest(key, rows, state):
    after = (int(rows["v"].iloc[-1]), (state or (0, 0))[1] + 1)
    return emitted("last", key, after), after


FUNCTIONS = {"sum": summed, "all": gathered, "last": newest}


def moment(value: int) -> int:
    """When a record was, in milliseconds, where time-outs go by the time of records."""
    return 1000 + 5 * value


def ended(key, state):
    return emitted("end", key, state)


@dataclass
class Composed:
    """A carrier of one composition."""

    now: int = 0
    tables: Path | None = None
    left_out: Path | None = None
    later: None = None

    def code(self, batch: int) -> int:
        return self.now


@dataclass
class FakeSpark:
    """Spark's part: state and time-out by key, and the calls of a batch."""

    keyed: KeyedOperator
    state: dict[int, tuple[Any, int]] = field(default_factory=dict)
    counted: list[Any] = field(default_factory=list)

    def batch(self, carrier: Composed, records: Mapping[int, Sequence[int]], now: int) -> list[tuple[int, str, str]]:
        """Run a batch at millisecond `now`; the rows that it emits."""
        run = state_function(cloudpickle.dumps(self.keyed), "segment", carrier, _Sink(self.counted))
        timeout = self.keyed.timeout
        rows = []
        for key, values in records.items():
            first = key[0] if isinstance(key, tuple) else key
            frame = pd.DataFrame({"k": first, "v": values, ORDER: range(len(values))})
            if timeout is not None and timeout.by:
                frame[MOMENT], frame[WATCHED] = [moment(value) for value in values], 0
            rows += self._call(run, key, frame, now, timed_out=False)
        late = [key for key, (_, due) in self.state.items() if key not in records and due != -1 and due < now]
        for key in late:
            rows += self._call(run, key, pd.DataFrame({"k": [], "v": []}), now, timed_out=True)
        return rows

    def _call(self, run, key: int, frame: pd.DataFrame, now: int, timed_out: bool) -> list[tuple[int, str, str]]:
        value, due = self.state.get(key, (None, -1))
        timeout = self.keyed.timeout
        kind = "NoTimeout" if timeout is None else "EventTimeTimeout" if timeout.by else "ProcessingTimeTimeout"
        kind = "EventTimeTimeout" if isinstance(self.keyed.states, Grouping) and self.keyed.states.in_time else kind
        state = GroupState(
            value, now, now, kind, timed_out, True, value is not None, False, False, due, b"", self.keyed.states.schema
        )
        parts = [frame.iloc[:2], frame.iloc[2:]] if len(frame) > 2 else [frame]
        keys = key if isinstance(key, tuple) else (key,)
        found = [row for result in run(keys, parts, state) for row in result.itertuples(index=False, name=None)]
        if state.exists:
            self.state[key] = (tuple(state.get), state._timeout_timestamp)
        else:
            self.state.pop(key, None)
        return found


class _Sink:
    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def add(self, rows: Sequence[Any]) -> None:
        self._rows += rows


def keyed_of(own: bool, names: Sequence[str], timeout: Timeout | None = None) -> KeyedOperator:
    schemas = [ALL if name == "all" else SUM for name in names]
    alternates = tuple(Implementation(name, Form.STATE, FUNCTIONS[name]) for name in names)
    pick, table = Digit(1, len(names)), Digit(len(names), 256)
    return KeyedOperator("op", alternates, States(schemas, own), AlternateDigits(pick, table, (0,)), timeout)


batches = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2),
        st.dictionaries(st.integers(0, 4), st.lists(st.integers(0, 30), min_size=1, max_size=5), max_size=4),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=12,
)
TABLES = ({}, {1: 1, 3: 0}, {1: 0, 2: 1})
"""Alternates by key, in each version of the table from 0."""


@settings(max_examples=examples(150), deadline=None)
@given(own=st.booleans(), ends=st.sampled_from(["never", "clock", "records"]), steps=batches)
def test_whatever_is_switched_states_are_those_of_a_plain_model(tmp_path_factory, own, ends, steps):
    names = ("sum", "all") if own else ("sum", "last")
    timeout = None if ends == "never" else Timeout(0.05, by="v" if ends == "records" else "", function=ended)
    spark = FakeSpark(keyed_of(own, names, timeout))
    folder = tmp_path_factory.mktemp("tables")
    for version in (1, 2):
        rows = {(key,): names[number] for key, number in TABLES[version].items()}
        in_use(folder, KeyTable("flow", "op", ("k",), rows), version)
    model: dict[int, dict[int, Any]] = {}
    due: dict[int, int] = {}
    calls: Counter[tuple[str, int]] = Counter()
    now = 1000
    for pick, version, records, passed in steps:
        now += passed
        expected = []
        for key, values in records.items():
            number = TABLES[version].get(key, pick)
            states = model.get(key, {})
            at = number if own else 0
            rows = pd.DataFrame({"k": key, "v": values})
            result, state = FUNCTIONS[names[number]]((key,), rows, states.get(at))
            expected += list(result.itertuples(index=False, name=None))
            calls[names[number], len(values)] += 1
            states = {**states, at: state} if state is not None else {n: s for n, s in states.items() if n != at}
            model[key] = states
            if timeout is not None:
                newest_moment = max(due.get(key, 0), moment(max(values)) + 50, now) if timeout.by else now + 50
                due[key] = newest_moment
            if not states:
                del model[key]
                due.pop(key, None)
        for key in [key for key in model if key not in records and key in due and due[key] < now]:
            number = TABLES[version].get(key, pick)
            expected += list(ended((key,), model[key].get(number if own else 0)).itertuples(index=False, name=None))
            del model[key], due[key]
        code = pick + 2 * version
        assert spark.batch(Composed(code, folder / "tables"), records, now) == expected
        found = {
            key: {n: state for n in range(2 if own else 1) if (state := spark.keyed.states.of(kept, n)) is not None}
            for key, (kept, _) in spark.state.items()
        }
        assert found == model
    assert sum(row[4] for row in spark.counted) == sum(count * times for (_, count), times in calls.items())


def test_a_failing_function_keeps_the_state_and_is_named():
    def fails(key, rows, state):
        raise ValueError("no")

    spark = FakeSpark(keyed_of(True, ("sum", "all")))
    spark.batch(Composed(0), {1: [4]}, 1000)
    before = dict(spark.state)
    alternates = (spark.keyed.alternates[0], Implementation("all", Form.STATE, fails))
    spark.keyed = replace(spark.keyed, alternates=alternates)
    with pytest.raises(OperatorError) as failed:
        spark.batch(Composed(1), {1: [5]}, 1001)
    assert "operator 'op' (alternate 'all') failed" in explain_failure(failed.value)
    assert spark.state == before


def test_on_error_leaves_records_out_and_restarts_the_time_out(tmp_path, monkeypatch):
    monkeypatch.setattr(stateful, "batch_number", lambda: 7)

    def fails(key, rows, state):
        if 5 in list(rows["v"]):
            raise ValueError("no five")
        return summed(key, rows, state)

    def cannot_end(key, state):
        raise ValueError("it cannot end")

    keyed = keyed_of(False, ("sum", "last"), Timeout(0.05, function=cannot_end))
    alternates = (Implementation("sum", Form.STATE, fails), keyed.alternates[1])
    spark = FakeSpark(replace(keyed, alternates=alternates, on_error=OnError.DEAD_LETTER))
    carrier = Composed(0, left_out=tmp_path)
    spark.batch(carrier, {1: [4]}, 1000)
    assert spark.batch(carrier, {1: [5, 6], 2: [1]}, 1040) == [(2, "sum", "(1, 1)")]
    kept = {key: (spark.keyed.states.of(state, 0), due) for key, (state, due) in spark.state.items()}
    assert kept == {1: ((4, 1), 1090), 2: ((1, 1), 1090)}
    assert sum(row[4] for row in spark.counted) == 4
    found = read_left_out("segment", 7, tmp_path / "7")
    assert [(each["error"], each["key"], each["record"]["v"]) for each in found.letters] == [
        ("ValueError: no five", [1], 5),
        ("ValueError: no five", [1], 6),
    ]
    assert spark.batch(carrier, {}, 2000) == []
    assert spark.state == {}


def test_an_unfit_state_is_an_error_of_its_alternate():
    keyed = keyed_of(False, ("sum", "last"))
    wrong = Implementation("sum", Form.STATE, lambda key, rows, state: (emitted("sum", key, 0), ("many", 1)))
    with pytest.raises(OperatorError) as failed:
        FakeSpark(replace(keyed, alternates=(wrong, keyed.alternates[1]))).batch(Composed(0), {1: [4]}, 1000)
    assert "it left a state that is not (total bigint, n bigint)" in explain_failure(failed.value)


def test_a_time_out_without_a_function_ends_the_state_and_emits_nothing():
    spark = FakeSpark(keyed_of(False, ("sum", "last"), Timeout(0.05)))
    spark.batch(Composed(0), {1: [4]}, 1000)
    assert spark.batch(Composed(0), {}, 1051) == []
    assert spark.state == {}


def test_records_without_a_time_keep_the_time_out_of_those_before():
    spark = FakeSpark(keyed_of(False, ("sum", "last"), Timeout(0.05, by="v", function=ended)))
    spark.batch(Composed(0), {1: [200]}, 1000)
    run = state_function(cloudpickle.dumps(spark.keyed), "segment", Composed(0), _Sink([]))
    spark._call(run, 1, pd.DataFrame({"k": [1], "v": [1], MOMENT: [None], WATCHED: [0]}), 1001, timed_out=False)
    assert spark.state[1][1] == moment(200) + 50


# -- windows -----------------------------------------------------------------------------------------------------------


def windowed(window: Window, timeout: Timeout | None = None) -> FakeSpark:
    """An operator on windows, which emits what is in each."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    numbers = Implementation("all", Form.WINDOW, lambda key, rows: pd.DataFrame({"key": [key], "v": [list(rows.v)]}))
    grouping = Grouping("grouped", Form.WINDOW, window, (schema,))
    return FakeSpark(KeyedOperator("grouped", (numbers,), grouping, AlternateDigits(), timeout))


def test_a_count_window_ends_by_its_last_record_or_its_timeout():
    spark = windowed(Window(count=3), Timeout(2.0))
    assert spark.batch(Composed(), {1: [0, 1, 2, 3]}, 1000) == [((1,), [0, 1, 2])]
    assert spark.batch(Composed(), {}, 3001) == [((1,), [3])]
    assert spark.state == {}
    assert sum(row[4] for row in spark.counted) == 4
    assert sum(row[5] for row in spark.counted) == 2


def test_a_key_without_an_incomplete_window_has_no_state():
    spark = windowed(Window(count=2))
    assert spark.batch(Composed(), {1: [0]}, 1000) == []
    assert set(spark.state) == {1}
    assert spark.batch(Composed(), {1: [1]}, 1001) == [((1,), [0, 1])]
    assert spark.state == {}


@pytest.mark.parametrize("first", [4999, 5000], ids=["in a later batch", "at once"])
def test_a_time_window_ends_once_the_watermark_reaches_its_end(first):
    spark, key = windowed(Window(seconds=5.0, by="v")), (1, pd.Timestamp(0), pd.Timestamp(5, unit="s"), 5000)
    emitted = spark.batch(Composed(), {key: [2, 1]}, first)
    assert bool(spark.state) == (emitted == [])
    emitted += spark.batch(Composed(), {}, 5000)
    assert emitted == [(key[:-1], [1, 2])]
    assert spark.state == {}
