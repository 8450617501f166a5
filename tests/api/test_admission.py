"""What a run refuses before it starts anything: here, where that rests on what can be changed of queries on Spark."""

import pytest

from elastream import Dataflow, QueueThreshold, collect, constant, files
from elastream.api.admission import admit
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
