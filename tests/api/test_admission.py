"""What a run refuses before it starts anything: here, where that rests on what can be changed of queries on Spark."""

import pytest

from elastream import Autopilot, Dataflow, HostType, Local, run
from elastream.api.run import admit
from elastream.core.fitting import doubts
from elastream.dataflow.endpoints import collect, files
from elastream.errors import ElastreamError
from elastream.loads import constant
from elastream.policies import QueueThreshold
from elastream.settings import RunSettings


def settings(**given):
    return RunSettings(cloud=None, **given)


def plain(value):
    return value


def words(folder, **load):
    flow = Dataflow("words")
    flow.source(files(folder, "word string", "json"), **load).map(plain, returns="word string").sink(collect("words"))
    return flow.graph


def test_policy_that_only_adds_instances_needs_a_scalable_query(tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    with pytest.raises(ElastreamError, match="no operator of the dataflow can have more instances"):
        admit(words(tmp_path), settings(policy=QueueThreshold()))


def test_it_is_taken_where_the_width_of_a_source_is_ours(tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    admit(words(tmp_path, load=constant("5/s", lasts="10s")), settings(policy=QueueThreshold()))


def test_a_consistency_that_the_dataflow_cannot_keep_to_is_refused(tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    flow = Dataflow("words")
    stream = flow.source(files(tmp_path, "word string", "json")).durable()
    stream.map(plain, returns="word string").sink(collect("words"))
    admit(flow.graph, settings(consistency="wave"))
    with pytest.raises(ElastreamError, match="'drain' stops sources, and the source 'source' has no declared load"):
        admit(flow.graph, settings(consistency="drain"))


def test_a_consistency_that_is_none_is_refused_before_a_run_begins(tmp_path):
    with pytest.raises(ElastreamError, match="consistency 'often' is none of batch, wave, drain"):
        run(words(tmp_path), policy=QueueThreshold(), cloud=Local(), consistency="often", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("replicas", "sentence"),
    [
        (-1, "replicas is -1; it must be a whole number, 0 or more"),
        (1.5, "replicas is 1.5; it must be a whole number, 0 or more"),
        (
            3,
            (
                "replicas is 3: each copy is on a host of its own beside that of the state, which needs 4 hosts, and at "
                "most 3 may be leased (max_hosts)"
            ),
        ),
    ],
)
def test_copies_that_cannot_be_kept_are_refused_in_one_sentence(replicas, sentence, tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    flow = Dataflow("counts")
    flow.source(files(tmp_path, "word string", "json")).key_by("word").count().sink(collect("words"))
    with pytest.raises(ElastreamError) as refused:
        run(flow, policy=QueueThreshold(), cloud=Local(max_hosts=3), replicas=replicas, runs=tmp_path / "runs")
    assert str(refused.value) == sentence
    assert not (tmp_path / "runs").exists()
    admit(flow.graph, settings(replicas=2), max_hosts=3)


def test_copies_of_no_state_are_refused(tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    with pytest.raises(
        ElastreamError, match="dataflow 'words' keeps no state that could be copied: it has no keyed operator"
    ):
        admit(words(tmp_path), settings(replicas=1), max_hosts=3)
    with pytest.raises(ElastreamError, match="replicas is -1"):
        Autopilot(None, replicas=-1)  # type: ignore[arg-type]


def test_too_few_fault_zones_are_said_in_one_sentence():
    racks = [HostType(zone, cores=1, zone=zone) for zone in "ab"]
    assert doubts(1, racks, None, 8) == doubts(0, racks[:1], 8, 8) == ()
    (said,) = doubts(2, racks, None, 8)
    assert said == (
        "2 fault zones (a, b) for state and 2 copies: where a whole zone fails, state is read from the checkpoint; declare "
        "host types in 3 zones (`zone`)"
    )


def test_fewer_state_partitions_than_hosts_are_said_in_one_sentence():
    (said,) = doubts(0, [], 2, 8)
    assert said == (
        "2 state partitions for up to 8 hosts (max_hosts): hosts beyond 2 hold no state; give more state_partitions "
        "or fewer hosts"
    )


@pytest.mark.parametrize("partitions", [0, -3, 2.5, True])
def test_state_partitions_that_are_no_number_of_partitions_are_refused(partitions, tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    with pytest.raises(ElastreamError) as refused:
        run(
            words(tmp_path), policy=QueueThreshold(), cloud=Local(max_hosts=3), state_partitions=partitions,
            runs=tmp_path / "runs",
        )  # fmt: skip
    assert str(refused.value) == f"state_partitions is {partitions!r}; it must be a whole number, 1 or more"
    assert not (tmp_path / "runs").exists()


def test_more_state_partitions_than_a_driver_can_plan_are_refused():
    with pytest.raises(ElastreamError, match="state_partitions is 1,000,000,000; at most 100,000 are possible"):
        settings(state_partitions=1_000_000_000)
