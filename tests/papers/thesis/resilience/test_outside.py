"""State kept outside: totals are exact whatever runs again; without a server one sentence says how to get one."""

import shutil
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from elastream.errors import EnvironmentProblem
from elastream_papers.thesis.resilience import outside
from elastream_papers.thesis.resilience.outside import added, count_outside, missing, outside_store
from support.property_examples import examples

served = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a server")


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3)), max_size=20))
@settings(max_examples=examples(100))
def test_a_total_is_the_sum_of_its_batches_however_often_each_ran(batches):
    """Property."""
    value = None
    for batch, (n, attempts) in enumerate(batches):
        for _ in range(attempts):
            value = added(value, batch, n).encode()
    assert outside._parsed(value)[1] == sum(n for n, _ in batches)


def test_where_there_is_no_server_one_sentence_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EnvironmentProblem, match=r"no redis-server .*: apt-get update && apt-get install redis-server"):
        outside_store(tmp_path).__enter__()


@served
def test_a_server_takes_nobody_without_the_password_and_is_gone_afterwards(tmp_path):
    from redis import AuthenticationError, ConnectionError, Redis

    with outside_store(tmp_path) as store:
        store.client().set("a", added(None, 0, 3))
        assert store.totals() == {"a": 3}
        with pytest.raises(AuthenticationError):
            Redis.from_url("redis://" + store.url.partition("@")[2]).ping()
    with pytest.raises(ConnectionError):
        store.client().ping()
    assert (tmp_path / "redis.conf").stat().st_mode & 0o777 == 0o600


@served
@pytest.mark.spark
@pytest.mark.slow
def test_counts_kept_outside_are_those_of_a_batch_query(local_spark, tmp_path):
    source = local_spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500)
    numbers = source.option("numPartitions", 2).load()
    words = numbers.select((F.col("value") % 37).cast("string").alias("word"))
    with outside_store(tmp_path / "store") as store:
        query = count_outside(words, store, tmp_path / "checkpoint", "outside")
        try:
            while (query.lastProgress or {}).get("batchId", 0) < 3:
                assert query.awaitTermination(0.1) is False
        finally:
            query.stop()
        found = store.totals()
    batches, left = divmod(sum(found.values()), 500)
    assert batches >= 3
    assert left == 0
    assert found == Counter(str(number % 37) for number in range(500 * batches))
