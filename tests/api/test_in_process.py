"""Runs in this process: in a session of their own, and in the one that is open."""

import pytest
from pyspark import SparkContext

from elastream import Alternate, Dataflow, Plan, run
from elastream.actions import LeaseHost, SwitchAlternate
from elastream.clouds import InProcess, Local
from elastream.errors import EnvironmentProblem
from elastream.io import collect, records
from elastream.loads import constant
from support.shared_session import end_shared_session, shared_session

pytestmark = pytest.mark.spark

RECORDS = 200


def exact(word):
    return word


def loud(word):
    return word.upper()


class Switches:
    """Switches to the second alternate in every round, and asks for a host."""

    name = "switches"

    def plan(self, observation, memory):
        (kind,) = observation.context.host_types.values()
        lease = LeaseHost(observation.host_name(0), kind.name, kind.region)
        return Plan(actions=(SwitchAlternate("case", "loud"), lease), memory=memory)


def words(lasts="5s"):
    flow = Dataflow("words")
    lines = flow.source(records([{"line": "to be"}], "line string"), load=constant("40/s", lasts=lasts))
    split = lines.flat_map(str.split, name="split", returns="word string")
    cased = split.map((Alternate("exact", exact), Alternate("loud", loud, value=0.5)), name="case", returns="word string")
    cased.key_by("word").count().sink(collect("counts"))
    return flow


def counts(result):
    rows = result.collected["counts"]
    latest = rows.groupby("word")["count"].max()
    return latest.groupby(latest.index.str.lower()).sum().to_dict()


def begin(folder, **settings):
    return run(words(), target_latency="2s", runs=folder / "runs", show=False, state_partitions=2, **settings)


def test_a_run_without_a_cloud_opens_and_stops_a_session(tmp_path):
    end_shared_session()
    result = begin(tmp_path, policy=Switches())
    assert counts(result) == {"to": RECORDS, "be": RECORDS}
    assert set(result.collected["counts"]["word"]) >= {"TO", "BE"}
    assert (result.ending.status, result.ending.facts["records"]) == ("finished", RECORDS)
    refused = {proposal.refused for decision in result.recording.decisions for proposal in decision.proposals}
    assert "this plant has no LeaseHost" in refused
    (lease,) = result.ending.ledger
    assert (lease.type.price, lease.active) == (0.0, False)
    assert result.report.exists()
    assert SparkContext._active_spark_context is None


def test_a_run_leaves_the_open_session_as_it_was(tmp_path):
    spark = shared_session()
    spark.range(1).createOrReplaceTempView("mine")
    own = spark.readStream.format("rate").load().writeStream.format("noop").start()
    settings = spark.conf.getAll
    try:
        result = begin(tmp_path, cloud=InProcess())
        assert counts(result) == {"to": RECORDS, "be": RECORDS}
        assert own.isActive
        assert [query.id for query in spark.streams.active] == [own.id]
        assert spark.conf.getAll == settings
        assert spark.table("mine").count() == 1
    finally:
        own.stop()
        spark.catalog.dropTempView("mine")


def test_another_cloud_refuses_the_open_session_and_names_a_way(tmp_path):
    shared_session()
    with pytest.raises(EnvironmentProblem, match=r"or run in it with cloud=InProcess\(\)"):
        begin(tmp_path, cloud=Local(max_hosts=1))
