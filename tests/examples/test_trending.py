"""The trending example: its operators give what plain loops over all lines give, however the lines are divided into batches
and tasks, and what it checks itself by is right."""

import json
import tempfile
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

import pandas as pd
import pyarrow as pa
import pytest
import trending
from disturbed import Once, its_plug
from hypothesis import given, settings
from hypothesis import strategies as st
from trending import BEGAN, LETTERS, REPEATED, WINDOWS, WORD, Plan, Step, add, expected, first, leaders, rank, words_of

from elastream.api.options import RunOptions, with_options
from elastream.model.compiling import refuse_uncompilable
from elastream.model.stages import lay_out
from elastream.recording.recorder import Recording
from properties import examples

WORDS = st.lists(st.sampled_from(["comet", "dragon", "o", "tempest", "zephyr"]), max_size=30)


def test_a_mapper_gives_each_word_of_its_line_in_small_letters():
    item = {"mapper": 1, "at": BEGAN, "line": "**HAMLET**  To be, or 'not' - th'unquiet"}
    assert [row["word"] for row in words_of(item)] == ["hamlet", "to", "be", "or", "not", "th'unquiet"]
    assert {row["at"] for row in words_of(item)} == {BEGAN}


@given(st.lists(WORDS, max_size=6))
@settings(max_examples=examples(40))
def test_totals_are_the_same_however_words_come_in_batches(batches):
    """Property."""
    states, found = {}, {}
    for batch in batches:
        for word, rows in pd.DataFrame({"word": batch}).groupby("word"):
            out, states[word] = add((word,), rows, states.get(word))
            found[word] = out.total.item()
    assert found == Counter(word for batch in batches for word in batch)


@given(st.dictionaries(st.text("abcdefg", min_size=3, max_size=8), st.integers(1, 9)), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=examples(60))
def test_what_leads_a_window_is_the_same_however_its_words_are_divided(times, tasks, batches):
    """Property: among tasks, Arrow batches of a task, and batches of the query behind."""
    schema = pa.schema([("word", pa.string()), ("window_end", pa.timestamp("us", tz="UTC")), ("times", pa.int64())])
    state, out = None, None
    for task in range(tasks):
        mine = sorted(times.items())[task::tasks]
        parts = [pa.RecordBatch.from_pylist(
            [{"word": word, "window_end": BEGAN, "times": n} for word, n in mine[part::batches]], schema
        ) for part in range(batches)]  # fmt: skip
        for rows in leaders("1 hour", parts):
            out, state = rank(("1 hour", BEGAN), rows.to_pandas(), state)
    wanted = first({word: n for word, n in times.items() if len(word) >= LETTERS})
    assert (wanted == []) == (out is None)
    if out is not None:
        assert out.words.item() == state[0]
        assert [tuple(each) for each in json.loads(state[0])] == wanted


def test_as_many_lines_are_read_as_mappers_are_at_work_and_some_repeat_a_few_words():
    plan = Plan((Step(4, 2), Step(6, 4, repeating=1)), each=5.0)
    assert len(plan.rows) == plan.load.count(plan.load.seconds) == 4 * 2 * 5 + 6 * 4 * 5
    before, after = plan.rows[:40], plan.rows[40:]
    assert Counter(row["mapper"] for row in before) == {0: 20, 1: 20}
    assert set(Counter(row["mapper"] for row in after).values()) == {30}
    assert {row["line"] for row in after if row["mapper"] == 0} == {" ".join(REPEATED)}
    assert not any(row["line"] == " ".join(REPEATED) for row in (*before, *after) if row["mapper"] or row in before)
    times = [row["at"] for row in plan.rows]
    assert times == sorted(times)
    assert (times[-1] - BEGAN).total_seconds() == pytest.approx(10 * plan.faster, abs=plan.faster / 5)


def test_the_same_seed_reads_the_same_lines():
    few = (Step(2, 3),)
    assert Plan(few).rows == Plan(few).rows != Plan(few, seed=8).rows


def test_what_is_expected_counts_each_word_in_every_window_that_holds_it_and_has_ended():
    plan = Plan((Step(12, 2),), each=2.0, faster=900)
    wanted = expected(plan.rows)
    assert wanted.totals == Counter(word for row in plan.rows for word in WORD.findall(row["line"].lower()))
    newest = max(row["at"] for row in plan.rows)
    assert {length for length, _ in wanted.trends} == set(WINDOWS)
    for (length, end), words in wanted.trends.items():
        assert end <= newest
        begin = end - timedelta(seconds=WINDOWS[length][0])
        inside = [row["line"].lower() for row in plan.rows if begin <= row["at"] < end]
        times = Counter(word for line in inside for word in WORD.findall(line) if len(word) >= LETTERS)
        assert words == first(times)
        assert (end - BEGAN).total_seconds() % WINDOWS[length][1] == 0


def test_it_is_one_dataflow_of_six_queries_that_spark_can_run(tmp_path):
    layout = lay_out(trending.dataflow(Plan((Step(1, 1),)), tmp_path).graph)
    assert len(refuse_uncompilable(layout)) == len(WINDOWS) + 3


def test_one_host_is_killed_once_some_seconds_after_the_first_observation():
    killed = []
    cloud = SimpleNamespace(hosts=[SimpleNamespace(cluster=SimpleNamespace(kill=killed.append))])
    loss = Once(cloud, 5.0, its_plug)
    for time in (100.0, 104.0, 105.0, 106.0):
        loss.observed(SimpleNamespace(time=time, usable=("h1", "h2"), leases={"h1": SimpleNamespace(host="h1")}))
    assert (killed, loss.host, loss.since) == (["h1"], "h1", 105.0)


@pytest.mark.spark
@pytest.mark.slow
def test_a_host_killed_in_the_run_changes_no_count_and_no_query_starts_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with with_options(RunOptions(runs=tmp_path / "runs")):
        trending.main(Plan((Step(45, 3), Step(15, 4, repeating=1))), killed=25.0)
    said = capsys.readouterr().out
    assert "every total and every rank equals that of plain loops" in said
    (folder,) = (tmp_path / "runs").iterdir()
    recording = Recording.read(folder)
    assert recording.ending is not None
    assert recording.ending.facts["query runs"] == len(WINDOWS) + 3
    assert len([lease for lease in recording.hosts if lease.state == "lost"]) == 1
