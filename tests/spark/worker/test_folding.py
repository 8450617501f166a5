"""A signal's value: the same however its records are spread over tasks, and unknown without any."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.dataflow.endpoints import Fold
from elastream.spark.worker.signals import Folding, Part, SignalTap, folded
from support.property_examples import examples

VALUES = st.lists(st.one_of(st.none(), st.just(math.nan), st.integers(-(2**40), 2**40)), max_size=30)
PLAIN = {
    Fold.SUM: sum,
    Fold.MEAN: lambda values: sum(values) / len(values),
    Fold.MIN: min,
    Fold.MAX: max,
}


def part_of(tap: SignalTap, values: list[object], kind: pa.DataType) -> Part:
    """What one task makes of `values`, in batches of three."""
    folding = Folding(tap)
    for at in range(0, len(values), 3):
        folding.add(pa.RecordBatch.from_arrays([pa.array(values[at : at + 3], kind)], names=["x"]))
    return folding.part


@given(st.sampled_from(sorted(PLAIN)), st.lists(VALUES, max_size=4))
@settings(max_examples=examples(200))
def test_numbers_are_folded_without_nulls_and_nan_whichever_task_has_them(fold, tasks):
    parts = [part_of(SignalTap("s", fold, "x"), list(values), pa.float64()) for values in tasks]
    known = [value for values in tasks for value in values if value is not None and value == value]
    assert folded(fold, parts) == (PLAIN[fold](known) if known else None)


@given(
    st.sampled_from([Fold.ANY, Fold.ALL]), st.lists(st.lists(st.one_of(st.none(), st.booleans()), max_size=7), max_size=4)
)
@settings(max_examples=examples(100))
def test_truth_values_are_folded_without_nulls(fold, tasks):
    parts = [part_of(SignalTap("s", fold, "x"), list(values), pa.bool_()) for values in tasks]
    known = [value for values in tasks for value in values if value is not None]
    assert folded(fold, parts) == ({Fold.ANY: any, Fold.ALL: all}[fold](known) if known else None)


def test_records_are_counted_whatever_they_hold():
    assert folded(Fold.COUNT, [part_of(SignalTap("s", Fold.COUNT), [None, 1, 2, 3], pa.int64()), (0, 0.0)]) == 4.0
    assert folded(Fold.COUNT, [(0, 0.0)]) is None


def test_a_column_of_another_type_is_refused_with_the_name_of_the_signal():
    with pytest.raises(Exception, match=r"signal\(s\)"):
        part_of(SignalTap("s", Fold.SUM, "x"), ["one"], pa.string())
