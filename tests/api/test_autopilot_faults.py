"""What a fault of Autopilot does to the hosts and the folder that it was given; no Spark, plants are fakes."""

import logging
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from elastream.api import autopilot as module
from elastream.api.autopilot import Autopilot
from elastream.control.journal import ActionState, Journal
from elastream.core.action import LeaseHost, SetParallelism
from elastream.core.plant import Plan
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import run_lock
from elastream.recording.recorder import Recording
from elastream.spark.jvm.capabilities import Capabilities
from support.fake_plant import FakePlant


class Plant(FakePlant):
    look_seconds = 0.0

    def describe(self, host):
        return host

    def facts(self):
        return {}


class Planned:
    name = "planned"

    def __init__(self, *actions):
        self.actions = actions

    def plan(self, observation, memory=None):
        return Plan(self.actions)


def piloted(policy=None, *, plant=None, application="app-1", **options):
    spark = SimpleNamespace(
        version="4", conf={}, sparkContext=SimpleNamespace(master="spark://x", applicationId=application, appName="job")
    )
    pilot = Autopilot(spark, policy=policy or Planned(), period=1, **options)
    pilot.ended, pilot.made = [], plant or Plant(hosts=2, time_limit=6.0)
    pilot.made.clock.epoch = 0.0

    def attach(can: Capabilities, stack: ExitStack, leases):
        stack.callback(lambda: pilot.ended.append("every leased host"))
        close = pilot.made.close

        def leave():
            close()
            pilot.remaining_hosts[:] = ["h1", "h2"]

        pilot.made.close = leave
        return pilot.made

    pilot._probe = lambda: Capabilities(driver=SimpleNamespace())
    pilot._attach = attach
    return pilot


def test_malformed_action_is_a_failed_plan_and_ends_no_host():
    pilot = piloted(Planned(SetParallelism("source", "3")))
    pilot._run()
    assert pilot.made.applied == []
    assert pilot.made.closed
    assert pilot.ended == []


def test_a_fault_of_autopilot_ends_no_host_that_does_all_the_work(monkeypatch, caplog):
    monkeypatch.setattr(module, "describe_run", lambda *_, **__: (_ for _ in ()).throw(AssertionError("a bug")))
    pilot = piloted()
    pilot._run()
    assert "autopilot stopped after an error: AssertionError: a bug" in caplog.text
    assert pilot.made.closed
    assert pilot.ended == []
    assert pilot._open_until_exit is not None


def test_metrics_are_served_no_longer_than_they_are_fresh(monkeypatch):
    pytest.importorskip("prometheus_client")
    import psutil

    listening = {each.laddr.port for each in psutil.Process().net_connections() if each.status == "LISTEN"}
    pilot = piloted(Planned(SetParallelism("source", "3")), metrics=0)
    pilot._run()
    assert {each.laddr.port for each in psutil.Process().net_connections() if each.status == "LISTEN"} <= listening


@pytest.mark.parametrize(
    ("application", "applied", "states"),
    [("app-1", [LeaseHost("h3", "small")], [ActionState.DONE]), ("app-2", [], [ActionState.DROPPED])],
)
def test_only_the_same_application_s_undone_actions_are_done(tmp_path, application, applied, states):
    piloted(folder=tmp_path)._run()
    journal = Journal(tmp_path / "journal.jsonl")
    journal.step(journal.grant(LeaseHost("h3", "small"), "planned", 1.0), ActionState.TRIED, 1.0)
    journal.close()
    pilot = piloted(folder=tmp_path, application=application)
    pilot._run()
    assert pilot.made.applied == applied
    assert [entry.state for entry in Journal(tmp_path / "journal.jsonl").entries] == states


class Stopping(Planned):
    """A policy in whose first round `elastream stop` is called."""

    def __init__(self, directory):
        super().__init__()
        self.directory = directory

    def plan(self, observation, memory=None):
        self.directory.request_stop()
        return super().plan(observation, memory)


def test_elastream_stop_ends_an_autopilot_with_a_folder(tmp_path):
    piloted(Stopping(RunDirectory(tmp_path)), folder=tmp_path)._run()
    ending = Recording.read(tmp_path).ending
    assert (ending.status, ending.reason) == ("stopped", "elastream stop")
    assert ending.time < 6.0


def test_autopilot_works_without_a_folder_that_another_one_holds(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with run_lock(RunDirectory(tmp_path)):
        pilot = piloted(Planned(LeaseHost("h3", "small")), folder=tmp_path)
        pilot._run()
    assert "keeps no recording and no journal" in caplog.text
    assert pilot.made.applied == [LeaseHost("h3", "small")]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run.lock"]


class Session(SimpleNamespace):
    """A session of queries, of which those in `ids` run."""

    def __init__(self, *ids):
        streams = SimpleNamespace(active=[SimpleNamespace(id=each, runId=each) for each in ids])
        context = SimpleNamespace(master="spark://x", applicationId="app-1", appName="job")
        context._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
        super().__init__(version="4", sparkContext=context, streams=streams)


def test_query_that_is_watched_after_the_end_starts_autopilot_again(caplog):
    pilot, runs = Autopilot(Session()), []
    pilot._run = lambda: runs.append(len(runs)) is None
    for round in (1, 2):
        pilot.watch(SimpleNamespace(runId="run", id="loop"))
        assert pilot.join(10)
        assert len(runs) == round
    assert "create another one" not in caplog.text


def test_query_that_starts_while_autopilot_ends_is_watched():
    pilot, runs = Autopilot(Session("loop")), []

    def run():
        runs.append(pilot._chosen)
        if len(runs) == 2:
            pilot._spark.streams.active.clear()
        return True

    pilot._run = run
    pilot.watch(SimpleNamespace(runId="run", id="loop"))
    assert pilot.join(10)
    assert runs == [{"loop"}] * 2


def test_fault_does_not_start_autopilot_again_by_itself():
    pilot, runs = Autopilot(Session("loop")), []
    pilot._run = lambda: runs.append(1)
    pilot.watch(SimpleNamespace(runId="run", id="loop"))
    assert pilot.join(10)
    assert runs == [1]
