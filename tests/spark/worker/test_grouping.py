"""Windows without Spark: however records are cut into batches, what is complete equals what plain Python computes."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.operators import Form
from elastream.dataflow.windows import Pairs, Window
from elastream.spark.worker.exits import EXIT, ORDER
from elastream.spark.worker.runner import Implementation, OperatorError
from elastream.spark.worker.windows import Grouping, PortTables, frame_of, pack
from support.property_examples import examples

NUMBERS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("last", pa.bool_())])
OTHERS = pa.schema([("k", pa.string()), ("m", pa.int64())])


def grouping(window: Window | None, form: Form = Form.WINDOW, ports: tuple[pa.Schema, ...] = (NUMBERS,)) -> Grouping:
    return Grouping("grouped", form, window, ports)


def rows_of(numbers: Sequence[int], landmarks: frozenset[int] = frozenset()) -> pd.DataFrame:
    rows = [{"k": "a", "n": n, "last": n in landmarks, ORDER: at} for at, n in enumerate(numbers)]
    return pd.DataFrame(rows[::-1])  # a shuffle keeps no order


def of_ports(*ports: Sequence[int]) -> pd.DataFrame:
    """Records of several inputs in one batch, as they come out of a shuffle."""
    names = ("n", "m")
    rows = [
        {EXIT: port, ORDER: at, **{f"_{each}": None for each in range(len(ports))}, f"_{port}": value(port, n, names)}
        for port, numbers in enumerate(ports)
        for at, n in enumerate(numbers)
    ]
    return pd.DataFrame(rows[::-1])


def value(port: int, n: int, names: Sequence[str]) -> dict[str, Any]:
    return {"k": "a", names[port]: n} | ({"last": n % 3 == 0} if port == 0 else {})


def run(group: Grouping, batches: Sequence[pd.DataFrame]) -> tuple[list[PortTables], PortTables]:
    """Windows that were complete batch by batch, and what is kept at the end; the state is written and read in between."""
    stored: tuple[bytes | None, ...] = (None,) * len(group.ports)
    found = []
    for rows in batches:
        kept = group.unpack(stored)
        if len(rows):
            windows, kept = group.complete(group.joined(kept, group.incoming(rows)))
            found += windows
        stored = pack(kept)
    return found, group.unpack(stored)


def numbers_in(part: pa.Table, column: str = "n") -> list[int]:
    found: list[int] = part.column(column).to_pylist()
    return found


def cut(numbers: Sequence[int], at: Sequence[int]) -> list[Sequence[int]]:
    places = sorted({0, len(numbers), *(each for each in at if each < len(numbers))})
    return [numbers[a:b] for a, b in pairwise(places)]


CUTS = st.lists(st.integers(1, 60), max_size=8)


@given(st.integers(0, 60), CUTS, st.integers(1, 9), st.data())
@settings(max_examples=examples(200))
def test_count_windows_are_those_of_the_whole_stream_however_it_is_cut(total, cuts, count, data):
    every = data.draw(st.integers(1, count))
    numbers = range(total)
    found, kept = run(grouping(Window(count=count, every=every)), [rows_of(each) for each in cut(numbers, cuts)])
    windows = [list(numbers[at : at + count]) for at in range(0, total - count + 1, every)]
    assert [numbers_in(window) for (window,) in found] == windows
    assert numbers_in(kept[0]) == list(numbers[len(windows) * every :])


@given(st.integers(0, 60), CUTS, st.sets(st.integers(0, 59)))
@settings(max_examples=examples(200))
def test_a_landmark_ends_a_window_and_is_its_last_record(total, cuts, landmarks):
    batches = [rows_of(each, frozenset(landmarks)) for each in cut(range(total), cuts)]
    found, kept = run(grouping(Window(landmark="last")), batches)
    windows: list[list[int]] = [[]]
    for n in range(total):
        windows[-1].append(n)
        if n in landmarks:
            windows.append([])
    assert [numbers_in(window) for (window,) in found] == windows[:-1]
    assert numbers_in(kept[0]) == windows[-1]


@given(st.integers(0, 40), st.integers(0, 40), CUTS, CUTS, st.integers(1, 5))
@settings(max_examples=examples(100))
def test_the_nth_count_windows_of_both_sides_of_a_join_come_together(left, right, left_cuts, right_cuts, count):
    lefts, rights = cut(range(left), left_cuts), cut(range(right), right_cuts)
    most = max(len(lefts), len(rights))
    lefts += [()] * (most - len(lefts))
    rights += [()] * (most - len(rights))
    group = grouping(Window(count=count), Form.JOIN, (NUMBERS, OTHERS))
    found, kept = run(group, [of_ports(*each) for each in zip(lefts, rights, strict=True) if any(each)])
    pairs = min(left // count, right // count)
    assert [(numbers_in(a), numbers_in(b, "m")) for a, b in found] == [
        (list(range(n * count, (n + 1) * count)), list(range(n * count, (n + 1) * count))) for n in range(pairs)
    ]
    assert (numbers_in(kept[0]), numbers_in(kept[1], "m")) == (
        list(range(pairs * count, left)),
        list(range(pairs * count, right)),
    )


@given(st.integers(0, 40), st.integers(0, 40), CUTS)
@settings(max_examples=examples(100))
def test_a_zip_puts_the_nth_records_together_and_keeps_what_has_no_partner(left, right, cuts):
    lefts, rights = cut(range(left), cuts), cut(range(100, 100 + right), cuts)
    most = max(len(lefts), len(rights), 1)
    lefts += [()] * (most - len(lefts))
    rights += [()] * (most - len(rights))
    group = grouping(None, Form.ZIP, (pa.schema([("n", pa.int64())]), pa.schema([("m", pa.int64())])))
    batches = [of_ports(*each) for each in zip(lefts, rights, strict=True) if any(each)]
    found, kept = run(group, batches)
    rows = [
        row for window in found for row in group.call(Implementation("zip", Form.ZIP, print), (), window).values.tolist()
    ]
    assert rows == [[n, 100 + n] for n in range(min(left, right))]
    assert sum(part.num_rows for part in kept) == abs(left - right)


def test_a_windows_column_orders_records_stably():
    rows = pd.DataFrame({"k": "a", "n": [3, 1, 3, 2], "last": [False, False, True, False], ORDER: range(4)})
    (part,) = grouping(Window(count=4, by="n")).incoming(rows)
    assert part.select(["n", "last"]).to_pydict() == {"n": [1, 2, 3, 3], "last": [False, False, False, True]}


def test_what_is_left_is_emitted_as_it_is_once_nothing_more_is_waited_for():
    group = grouping(Window(count=3), Form.JOIN, (NUMBERS, OTHERS))
    kept = group.incoming(of_ports(range(7), range(2)))
    left = [(numbers_in(a), numbers_in(b, "m")) for a, b in group.flush(kept)]
    assert left == [([0, 1, 2], [0, 1]), ([3, 4, 5], []), ([6], [])]


def test_values_of_every_kind_are_kept_as_they_are():
    schema = pa.schema(
        [
            ("whole", pa.int64()), ("part", pa.float64()), ("text", pa.string()), ("bytes", pa.binary()),
            ("time", pa.timestamp("us")), ("day", pa.date32()), ("price", pa.decimal128(10, 2)),
            ("several", pa.list_(pa.int64())), ("inner", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ]
    )  # fmt: skip
    row = {
        "whole": 2**60, "part": 0.1, "text": "ü", "bytes": b"\x00", "time": pd.Timestamp("2026-01-01 00:00:00.000001"),
        "day": pd.Timestamp("2026-01-02").date(), "price": __import__("decimal").Decimal("1.10"), "several": [1, 2],
        "inner": {"a": 1, "b": "x"},
    }  # fmt: skip
    empty = dict.fromkeys(row)
    kept = (pa.Table.from_pylist([row, empty], schema),)
    assert Grouping("g", Form.WINDOW, Window(count=1), (schema,)).unpack(pack(kept)) == kept
    seen = Grouping("g", Form.WINDOW, Window(count=1), (schema,)).incoming(
        frame_of(kept[0].slice(0, 1)).assign(**{ORDER: 0})
    )
    assert seen == (kept[0].slice(0, 1),)


def failing(_: object, __: object) -> None:
    raise ValueError("too few")


@pytest.mark.parametrize(
    ("function", "says"),
    [(failing, "ValueError: too few"), (lambda _, __: [1], "it returned a list, not a pandas DataFrame")],
    ids=["raises", "no frame"],
)
def test_a_function_that_fails_is_named_with_the_window_that_it_failed_on(function: Callable[..., Any], says: str):
    group = grouping(Window(count=2))
    (window,), _ = group.complete(group.incoming(rows_of([7, 8])))
    with pytest.raises(OperatorError, match=says) as failed:
        group.call(Implementation("tried", Form.WINDOW, function), ("a",), window)
    assert "'n': 7" in str(failed.value)


def test_a_join_without_a_function_emits_every_pair():
    group = grouping(Window(count=2), Form.JOIN, (NUMBERS, OTHERS))
    (window,), _ = group.complete(group.incoming(of_ports([1, 2], [8, 9])))
    pairs = group.call(Implementation("join", Form.JOIN, Pairs(("k",))), ("a",), window)
    assert sorted(pairs[["n", "m"]].values.tolist()) == [[1, 8], [1, 9], [2, 8], [2, 9]]
