"""What a run refuses before it starts anything: here, where that rests on what can be changed of queries on Spark."""

import pytest

from elastream import Dataflow, Local, QueueThreshold, collect, constant, files, run
from elastream.api.admission import admit
from elastream.model.composing import Consistency
from elastream.model.errors import ElastreamError


def plain(value):
    return value


def words(folder, **load):
    flow = Dataflow("words")
    flow.source(files(folder, "word string", "json"), **load).map(plain, returns="word string").sink(collect("words"))
    return flow.graph


def test_a_policy_that_only_adds_instances_is_refused_where_no_query_can_have_more(tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    with pytest.raises(ElastreamError, match="no operator of the dataflow can have more instances"):
        admit(words(tmp_path), policy=QueueThreshold())


def test_it_is_taken_where_the_width_of_a_source_is_ours(tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    admit(words(tmp_path, load=constant("5/s", lasts="10s")), policy=QueueThreshold())


def test_a_consistency_that_the_dataflow_cannot_keep_to_is_refused(tmp_path):
    (tmp_path / "some.json").write_text('{"word": "a"}\n')
    flow = Dataflow("words")
    stream = flow.source(files(tmp_path, "word string", "json")).durable()
    stream.map(plain, returns="word string").sink(collect("words"))
    admit(flow.graph, consistency=Consistency.WAVE)
    with pytest.raises(ElastreamError, match="'drain' holds sources back, and the source 'source' has no load"):
        admit(flow.graph, consistency=Consistency.DRAIN)


def test_a_consistency_that_is_none_is_refused_before_a_run_begins(tmp_path):
    with pytest.raises(ElastreamError, match="consistency 'often' is none of batch, wave, drain"):
        run(words(tmp_path), policy=QueueThreshold(), cloud=Local(), consistency="often", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
