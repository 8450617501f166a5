"""The trending example: its operators give what plain loops over all lines give, however the lines are divided into batches
and tasks, and what it checks itself by is right.
"""

import json
import tempfile

import pandas as pd
import pytest
import trending
from hypothesis import given, settings
from hypothesis import strategies as st
from trending import (
    QUERIES,
    SLOT,
    Plan,
    Step,
    candidates,
    differences,
    expected,
    rank,
    reduce_word,
    words_of,
)

from elastream.api.run import commanded
from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.stages import lay_out
from elastream.recording.recorder import Recording
from elastream.spark.dataflow.sinks import begin_results
from support.property_examples import examples

STREAM = st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["comet", "dragon", "o", "tempest"])), max_size=60)
"""(slot, word), in any order: `batches_of` brings them into theirs."""


def batches_of(stream, sizes):
    """The stream in order of its slots, cut into batches."""
    left = sorted(stream)
    for size in sizes:
        if left:
            yield pd.DataFrame(left[:size], columns=["slot", "word"])
            left = left[size:]
    if left:
        yield pd.DataFrame(left, columns=["slot", "word"])


def test_a_mapper_gives_each_word_of_its_line_in_small_letters():
    item = {"mapper": 1, "second": 2.5 * SLOT, "line": "**HAMLET**  To be, or 'not' - th'unquiet"}
    assert [row["word"] for row in words_of(item)] == ["hamlet", "to", "be", "or", "not", "th'unquiet"]
    assert {row["slot"] for row in words_of(item)} == {2}


@given(STREAM, st.lists(st.integers(1, 20), max_size=5))
@settings(max_examples=examples(30))
def test_results_are_the_same_however_words_come_in_batches(stream, sizes):
    """Property: those of `expected`; what ranks gets the rows of a batch in two parts, later slots first."""
    states, ranking, counts, ranks = {}, {}, {}, {}
    for batch in batches_of(stream, sizes):
        counted = []
        for word, rows in batch.groupby("word"):
            out, states[word] = reduce_word((word,), rows, states.get(word))
            counted += out.to_dict("records")
            counts[word] = (out.total.iloc[-1], *out.windows.iloc[-1])
        led = [row for item in counted for row in candidates(item)]
        for part in (led[len(led) // 2 :], led[: len(led) // 2]):
            for length, rows in pd.DataFrame(part, columns=["length", "word", "slot", "times"]).groupby("length"):
                out, ranking[length] = rank((length,), rows, ranking.get(length))
                ranks |= {
                    (row.length, row.end): [tuple(each) for each in json.loads(row.words)] for row in out.itertuples()
                }
    wanted = expected([{"second": slot * SLOT, "line": word} for slot, word in stream])
    assert counts == wanted.counts
    assert ranks == wanted.ranks


def test_what_differs_from_plain_loops_is_said(tmp_path):
    for name, key, rows in (
        ("counts", ["word"], [{"word": "comet", "slot": 1, "times": 1, "total": 3, "windows": [1, 2, 3]}]),
        ("ranks", ["length"], [{"length": "1 hour", "end": 3, "words": '[["comet", 2]]'}]),
    ):
        folder = tmp_path / name / "batch=0"
        folder.mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(folder / "part.parquet")
        begin_results(tmp_path / name, tuple(key), fresh=False)
    same = trending.Expected({"comet": (3, 1, 2, 3)}, {("1 hour", 3): [("comet", 2)]})
    assert differences(tmp_path, same) == []
    other = trending.Expected({"comet": (4, 1, 2, 3)}, {})
    assert differences(tmp_path, other) == [
        "count of comet: (3, 1, 2, 3), and by plain loops (4, 1, 2, 3)",
        "ranks of ('1 hour', 3): [('comet', 2)], and by plain loops None",
    ]


def test_it_is_one_dataflow_of_two_queries_that_spark_can_run(tmp_path):
    layout = lay_out(trending.dataflow(Plan((Step(1, 1),)), tmp_path).graph)
    assert len(plan_queries(layout)) == QUERIES


@pytest.mark.spark
@pytest.mark.slow
def test_a_killed_host_changes_no_count_and_restarts_no_query(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with commanded(runs=tmp_path / "runs"):
        trending.main(Plan((Step(45, 3), Step(15, 4, repeating=1))), killed=25.0)
    said = capsys.readouterr().out
    assert "every window and every rank equals that of plain loops" in said
    (folder,) = (tmp_path / "runs").iterdir()
    recording = Recording.read(folder)
    assert recording.ending is not None
    assert recording.ending.facts["query runs"] == QUERIES
    assert len([lease for lease in recording.hosts if lease.state == "lost"]) == 1
