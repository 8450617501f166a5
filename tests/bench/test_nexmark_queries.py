"""The queries as streams on Spark: they give the rows of another project, and those of a batch over generated events."""

import pytest

from elastream.bench.comparison import compare
from elastream.bench.nexmark.answers import ANSWERS
from elastream.bench.nexmark.events import KINDS, Events
from elastream.bench.nexmark.queries import QUERIES
from elastream.loads import constant
from support.nexmark_rows import ANSWERED, VARIANTS, neutral_answer, neutral_table
from support.nexmark_streams import SIDE, stream_query, write_tables

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
EVENTS = 20_000
# A disorder below the watermark's delay: no event is too late.
GENERATED = Events(seed=3, load=constant("500/s"), disorder=2.0)


@pytest.fixture(scope="module")
def neutral(tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("neutral") / "rows", {kind: neutral_table(kind) for kind in KINDS}, files=1)


@pytest.fixture(scope="module")
def tables():
    return {kind: GENERATED.table(kind, 0, EVENTS) for kind in KINDS}


@pytest.fixture(scope="module")
def generated(tables, tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("generated") / "rows", tables, files=3)


@pytest.mark.parametrize("name", ANSWERED)
def test_stream_gives_the_neutral_rows(local_spark, neutral, tmp_path, name):
    rows = stream_query(local_spark, name, neutral, tmp_path / "checkpoint", **VARIANTS.get(name, {}))
    assert not compare(rows, neutral_answer(name, like=rows))


OTHERS = [name for name in QUERIES if name not in ANSWERED]


@pytest.mark.parametrize("name", [*OTHERS, *(pytest.param(name, marks=pytest.mark.slow) for name in ANSWERED)])
def test_stream_gives_the_rows_of_a_batch(local_spark, generated, tables, tmp_path, name):
    rows = stream_query(local_spark, name, generated, tmp_path / "checkpoint")
    if name == "q12":  # the window depends on when a bid is read
        rows = rows.groupby("bidder")["bid_count"].sum().reset_index()
    inputs = [tables[stream.removesuffix("s")].to_pandas() for stream in QUERIES[name].streams]
    answer = ANSWERS[name](*inputs, **({"side": SIDE} if name == "q13" else {}))
    assert len(answer) > 0
    assert not compare(rows, answer)
