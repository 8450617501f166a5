"""The answers in pandas, held to rows that another project's tests expect; and the comparison itself."""

from decimal import Decimal

import pandas as pd
import pytest

from elastream.bench.comparison import BATCH, compare, final_rows
from elastream.bench.nexmark.answers import ANSWERS
from elastream.bench.nexmark.events import Events, kind_of
from elastream.bench.nexmark.queries import QUERIES
from elastream.bench.nexmark.workload import SIDE
from support.nexmark_rows import ANSWERED, IN_PANDAS, VARIANTS, neutral_answer, neutral_table


@pytest.mark.parametrize("name", ANSWERED)
def test_answer_in_pandas_is_the_neutral_one(name):
    tables = [neutral_table(stream.removesuffix("s")).to_pandas() for stream in QUERIES[name].streams]
    rows = ANSWERS[name](*tables, **VARIANTS.get(name, {}) | IN_PANDAS.get(name, {}))
    assert not compare(rows, neutral_answer(name, like=rows))


def test_every_query_has_an_answer():
    assert set(QUERIES) == set(ANSWERS) == {f"q{number}" for number in range(23)}


@pytest.mark.parametrize("name", QUERIES)
def test_answer_to_events_without_a_bid_is_empty(name):
    inputs = [Events().table(kind_of(stream), 0, 4).to_pandas() for stream in QUERIES[name].streams]
    answer = ANSWERS[name](*inputs, **({"side": SIDE} if name == "q13" else {}))
    assert len(answer) == 0 or "bids" not in QUERIES[name].streams


def test_comparison_counts_rows_that_differ_as_bags():
    rows = pd.DataFrame({"a": [1, 1, 2]})
    assert not compare(rows, rows.iloc[::-1])
    assert compare(rows, pd.DataFrame({"a": [1, 2, 2]})) == compare(rows, pd.DataFrame({"a": [1, 2, 2]}))
    difference = compare(rows, pd.DataFrame({"a": [1, 2, 3]}))
    assert (difference.missing, difference.surplus, difference.example) == (1, 1, "lacks (3,)")


@pytest.mark.parametrize("values", [(Decimal("1.500"), Decimal("1.5")), (1 / 3, 1 / 3 + 1e-9)])
def test_comparison_sees_equal_numbers_as_equal(values):
    assert not compare(pd.DataFrame({"a": [values[0]]}), pd.DataFrame({"a": [values[1]]}))


def test_final_rows_are_the_latest_of_each_key():
    rows = pd.DataFrame({BATCH: [1, 0, 1], "k": ["x", "x", "x"], "n": [3, 9, 2]})
    assert final_rows(rows, ["k"], "n")["n"].tolist() == [3]
    assert len(final_rows(rows, [])) == 3
