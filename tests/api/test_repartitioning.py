"""A run repartitions its state by itself: when, how far, and what it refuses. On Spark: spark/test_repartition.py."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from checkpoints.test_state import checkpoint
from control.test_width import late
from elastream import Dataflow, run
from elastream.api import repartitioning
from elastream.api.repartitioning import RETRY_S, RepartitionExtension, RunCheckpoints, more_partitions
from elastream.checkpoints import repartition as changes
from elastream.checkpoints.repartition import Pause, add_pause
from elastream.control.width import DAY_S
from elastream.core.action import Repartition
from elastream.core.alarm import Alarms
from elastream.core.width import PauseLimit, RepartitionRule, TooLong
from elastream.dataflow.endpoints import collect, records
from elastream.errors import ElastreamError
from elastream.recording.directory import RunDirectory
from support.commands import invoke

MIDNIGHT = datetime(2026, 11, 29, tzinfo=UTC).timestamp()
RULE = RepartitionRule("0 3 * * *", 60.0)


def made(run: Path, rule: RepartitionRule = RULE, hour: float = 3.0) -> RunCheckpoints:
    return RunCheckpoints(RunDirectory(run), rule, UTC, lambda: MIDNIGHT + 3600 * hour)


def proposals(checkpoints: RunCheckpoints, *, seconds: float, every: float = 600.0):
    """Return time and action of what a day of late records leads to; the clock begins at midnight."""
    clock = [0.0]
    checkpoints.now = lambda: MIDNIGHT + clock[0]
    extension, alarms, found = RepartitionExtension(checkpoints), Alarms(lambda: clock[0]), []
    while clock[0] <= seconds:
        seen = extension.observed(late(time=clock[0]), alarms)
        found += [(clock[0], each.action) for each in extension.proposals(seen, (), alarms)]
        clock[0] += every
    return found


def test_state_is_repartitioned_in_the_first_window_after_a_day(tmp_path):
    assert proposals(made(tmp_path), seconds=2 * DAY_S) == [(DAY_S + 3 * 3600, Repartition(8))]


def test_long_window_has_a_proposal_an_hour(tmp_path):
    times = [time for time, _ in proposals(made(tmp_path, replace(RULE, when="* * * * *")), seconds=DAY_S + 2 * RETRY_S)]
    assert times == [DAY_S, DAY_S + RETRY_S, DAY_S + 2 * RETRY_S]


@pytest.mark.parametrize(("hosts", "partitions"), [(16, 8), (1, 0), (3, 8)])
def test_width_doubles_up_to_that_of_a_new_run(hosts, partitions):
    seen = late()
    most = replace(seen, context=replace(seen.context, max_hosts=hosts))
    assert more_partitions(most, None) == partitions


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A run's folder on a machine where a repartition took some seconds."""
    monkeypatch.setattr(changes, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "run.json").write_text('{"format": 1, "flow": "f", "started": 0.0}')
    folder = checkpoint(tmp_path / "checkpoint" / "source", rows=(1, 1))
    size = changes.checkpoint_state(folder).megabytes

    def took(seconds):
        add_pause(tmp_path / "cache" / changes.PAUSES, Pause(6, size, seconds))

    return took


@pytest.mark.parametrize(
    ("seconds", "hour", "refusal"),
    [
        (50.0, 3.0, ""),
        (70.0, 3.0, "the pause would be about 70 s, above the limit of 60.0 s"),
        (50.0, 4.0, "'0 3 * * *' does not match this minute"),
    ],
)
def test_repartition_begins_in_its_window_if_its_pause_is_short(tmp_path, measured, seconds, hour, refusal):
    measured(seconds)
    assert made(tmp_path, hour=hour).refusal(Repartition(4)) == refusal


def test_unknown_pause_is_tried(tmp_path, measured):
    assert made(tmp_path).refusal(Repartition(4)) == ""


def test_file_system_without_exchange_is_refused_before_the_pause(tmp_path, measured, monkeypatch):
    monkeypatch.setattr(changes, "RENAME_EXCHANGE", 1 << 10)
    assert "cannot be exchanged in one step" in made(tmp_path).refusal(Repartition(4))


def test_run_whose_repartition_took_too_long_does_not_try_again(tmp_path, measured, monkeypatch):
    def slow(*_, **__):
        raise TooLong("it took longer than 60 s")

    monkeypatch.setattr(repartitioning, "repartition", slow)
    checkpoints = made(tmp_path)
    with pytest.raises(TooLong):
        checkpoints.change(None, tmp_path / "checkpoint" / "source", 4, PauseLimit(60.0))
    assert checkpoints.refusal(Repartition(4)) == "it took longer than 60 s"


def test_a_pause_that_is_used_up_is_no_reason_to_give_up(tmp_path, measured):
    measured(20.0)
    checkpoints = made(tmp_path)
    with pytest.raises(ElastreamError, match="takes about 20 s, and 10 s of the pause are left"):
        checkpoints.change(None, tmp_path / "checkpoint" / "source", 4, PauseLimit(10.0, now=lambda: 0.0))
    assert checkpoints.refusal(Repartition(4)) == ""


GOOD = {"when": "0 3 * * *", "longest_pause": "60s"}


def started(rule=GOOD, *, keyed=True, **settings):
    flow = Dataflow("f")
    source = flow.source(records([{"k": 1}], "k int"))
    (source.key_by("k").count() if keyed else source).sink(collect("out"))
    run(flow, **{"repartition": rule, "state_store": "disk", "target_latency": "5s", "show": False, **settings})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rule": "3"}, "repartition is '3'; it must be a mapping of when and longest_pause: {when"),
        ({"rule": {"when": "0 3 * * *"}}, "it must be a mapping of when and longest_pause"),
        ({"rule": {**GOOD, "when": "0 25 * * *"}}, "'0 25 * * *' is not a cron expression (Bad hour)"),
        ({"rule": {**GOOD, "when": [*"03***"]}}, "is not a cron expression (it does not have five fields)"),
        ({"rule": {**GOOD, "when": 3}}, "3 is not a cron expression (it does not have five fields)"),
        ({"rule": {**GOOD, "longest_pause": "soon"}}, "repartition: longest_pause: "),
        ({"rule": {**GOOD, "longest_pause": 0}}, "longest_pause is 0 s; it must be above 0"),
        (
            {"state_store": "memory"},
            "repartition needs state_store='disk', because Spark repartitions the state of RocksDB only",
        ),
        ({"target_latency": None}, "repartition needs target_latency, which defines late records"),
        ({"keyed": False}, "repartition: the dataflow keeps no state, as it has no keyed operator"),
        ({"runs": "hdfs://x/y"}, "repartition needs checkpoints on this machine, and runs is hdfs://x/y"),
        ({"target_latency": None, "freshness": "10min"}, "repartition is for continuous runs, not for freshness"),
    ],
)
def test_wrong_setting_is_one_sentence(change, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ElastreamError, match=re.escape(sentence)):
        started(**change)
    assert list(tmp_path.iterdir()) == []


def test_spark_before_its_repartition_is_one_sentence():
    with pytest.raises(ElastreamError, match=r"state is repartitioned by Spark 4\.2 or newer, and this is 4\.1\.0"):
        changes.check_release("4.1.0")


def test_wrong_expression_in_a_document_names_its_line(tmp_path):
    file = tmp_path / "flow.yaml"
    file.write_text(
        "dataflow: f\nstate_store: disk\nrepartition: {when: 0 3 * *, longest_pause: 1m}\noperators:\n"
        "  s: {source: simulated}\n  k: {from: s, key_by: a, aggregate: {n: count(*)}}\n  o: {from: k, sink: simulated}\n"
    )
    result = invoke("check", file)
    assert result.exit_code == 2
    assert f"{file}:3: repartition.when: '0 3 * *' is not a cron" in result.stderr
