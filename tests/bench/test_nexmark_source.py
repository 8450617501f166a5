"""The data source of events on Spark, and a whole run on a local host."""

import pandas as pd
import pytest

from elastream.bench.arms import Cluster, arm_of
from elastream.bench.comparison import BATCH, compare
from elastream.bench.nexmark.events import Events
from elastream.bench.nexmark.queries import QUERIES
from elastream.bench.nexmark.workload import WATERMARK_DELAY, Nexmark, query_of
from elastream.bench.runs import Setup, run
from elastream.bench.service import batches_of
from elastream.bench.shapes import load_of
from elastream.bench.sources import read_events, with_watermark
from elastream.bench.workload import CLOSING_TIME, Reading
from elastream.clouds.provider import SMALL
from elastream.loads import constant
from support.nexmark_streams import ON_DISK
from support.waiting import wait_until

CLUSTER = Cluster(SMALL, max_hosts=2, partitions=2)
pytestmark = [pytest.mark.spark, pytest.mark.cluster]


@pytest.mark.parametrize("closed", [True, False])
def test_source_streams_every_event_of_the_load(local_spark, tmp_path, closed):
    events, checkpoint, parts = Events(load=constant("300/s", lasts=2.0)), tmp_path / "checkpoint", []
    local_spark.conf.set("spark.sql.session.timeZone", "UTC")
    bids = read_events(local_spark, events, "bid", Reading(tmp_path / "control", checkpoint, 2))
    stream = with_watermark(bids, "date_time", WATERMARK_DELAY) if closed else bids
    query = stream.writeStream.foreachBatch(lambda rows, _: parts.append(rows.toPandas()))
    running = query.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0.5 seconds").start()
    try:
        wait_until(lambda: any(batch.position == 601 for batch in batches_of(running.recentProgress)))
        running.processAllAvailable()
    finally:
        running.stop()
        local_spark.conf.unset("spark.sql.session.timeZone")
    rows = pd.concat(parts)
    if not closed:
        assert rows["date_time"].max() == pd.Timestamp(CLOSING_TIME).tz_localize(None)
        rows = rows[rows["auction"] >= 0]
    assert not compare(rows, events.table("bid", 0, 600).to_pandas())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q4", "q5", "q11", "q20"])
def test_rows_are_the_answers_of_a_query_that_was_stopped_and_resumed(local_spark, tmp_path, name):
    workload, batches = Nexmark(query_of(name), Events(load=constant("200/s", lasts=8.0), disorder=1.0)), {}
    reading = Reading(tmp_path / "control", tmp_path / "checkpoint", 2)
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}
    settings |= ON_DISK if workload.disk else {}

    def keep(rows, batch):
        batches[batch] = rows.toPandas().assign(**{BATCH: batch})

    def runs_until(position):
        writer = workload.result(local_spark, reading).writeStream.outputMode(workload.mode).foreachBatch(keep)
        timed = writer.option("checkpointLocation", str(reading.checkpoint)).trigger(processingTime="0.5 seconds")
        query = timed.start()
        try:
            wait_until(
                lambda: not query.isActive or any(each.position >= position for each in batches_of(query.recentProgress))
            )
            if position > 1600:
                query.processAllAvailable()
            assert query.exception() is None
        finally:
            query.stop()
        return max(each.position for each in batches_of(query.recentProgress))

    for key, value in settings.items():
        local_spark.conf.set(key, value)
    try:
        assert runs_until(100) < 1600, "events are left for the second run"
        assert runs_until(1601) == 1601
    finally:
        for key in settings:
            local_spark.conf.unset(key)
    assert not workload.difference(pd.concat(batches.values()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q5", "q9"])
def test_run_on_a_local_host_gives_the_answer(name):
    said, events = [], Events(load=constant("100/s", lasts=20.0), disorder=1.0)
    setup = Setup(CLUSTER, target_latency=10.0)
    (outcome,) = run(setup, [[Nexmark(query_of(name), events)]], arm_of("fixed:1"), said.append)
    assert (outcome.correct, outcome.remark) == (True, "")
    assert (outcome.service.events, outcome.most_hosts) == (2000, 1)
    assert f"{name}: compares the rows with the answer" in said


@pytest.mark.slow
@pytest.mark.parametrize(("arm", "kills"), [("dra", 0), ("autopilot", 1), ("watched:2", 1)])
def test_rows_are_the_answers_while_executors_come_and_go(arm, kills):
    workload = Nexmark(query_of("q20"), Events(load=constant("200/s", lasts=40.0)))
    (outcome,) = run(Setup(CLUSTER, target_latency=10.0, kills=kills), [[workload]], arm_of(arm), print)
    assert (outcome.correct, outcome.remark) == (True, "")
    assert outcome.most_hosts <= 2


NAMES = tuple(QUERIES)


@pytest.mark.slow
@pytest.mark.parametrize("names", [NAMES[at : at + 4] for at in range(0, len(NAMES), 4)], ids="-".join)
def test_rows_of_every_query_are_the_answers_through_kills_and_scaling(names):
    events = Events(load=load_of("burst", 500.0, 60.0), disorder=1.0)
    setup = Setup(CLUSTER, target_latency=10.0, kills=2, scales=True)
    outcomes = run(setup, [[Nexmark(query_of(name), events) for name in names]], arm_of("autopilot"), print)
    assert {each.workload: (each.correct, each.remark) for each in outcomes if not each.correct} == {}
    assert {each.most_hosts for each in outcomes} == {2}
    assert sum(each.host_seconds for each in outcomes) > 0


@pytest.mark.slow
def test_queries_of_one_application_share_its_host_time():
    events = Events(load=constant("100/s", lasts=20.0))
    pair = [Nexmark(query_of("q0"), events), Nexmark(query_of("q4"), events, target_latency=30.0)]
    outcomes = run(Setup(CLUSTER, target_latency=10.0), [pair], arm_of("watched:2"), print)
    assert [(each.workload, each.correct, each.target) for each in outcomes] == [("q0", True, 10.0), ("q4", True, 30.0)]
    assert 0 < outcomes[0].host_seconds < outcomes[1].host_seconds, "q4 works more"
