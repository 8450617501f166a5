"""`elastream repartition` of a live run, by the table in api/repartitioning.py. On Spark: spark/test_repartition.py."""

import os
import time
from contextlib import contextmanager

import pytest

from checkpoints.test_state import checkpoint
from elastream.api import repartitioning
from elastream.api.repartitioning import RunCheckpoints, request_repartition
from elastream.checkpoints import repartition as changes
from elastream.checkpoints.repartition import Pause, add_pause
from elastream.control.journal import ActionState, Journal
from elastream.control.loop import Loop
from elastream.control.requests import RequestExtension
from elastream.core.action import Outcome, Repartition, Status
from elastream.core.width import PauseLimit, RepartitionRule, Withdrawn
from elastream.errors import ElastreamError
from elastream.policies.static import Static
from elastream.recording.manifest import process_lock
from elastream.recording.request_log import Request, RequestLog
from support.commands import invoke
from support.fake_plant import FakePlant
from support.page_runs import live_run

DONE = (Status.DONE, "4 rows of state, equal before and after; paused for 9.0 s")


class RunOnCheckpoints(FakePlant):
    """A plant with the state of `checkpoints`, whose repartitions end as `ends` returns."""

    def __init__(self, checkpoints, ends):
        super().__init__()
        self._checkpoints, self._ends = checkpoints, ends

    def apply(self, action):
        if not isinstance(action, Repartition):
            return super().apply(action)
        refusal = self._checkpoints.refusal(action)
        return Outcome(action, Status.REFUSED, refusal) if refusal else Outcome(action, *self._ends(action))


class LiveRun:
    """A run of four state partitions that this process drives, whose controller works while a command sleeps."""

    def __init__(self, directory, recorder):
        self.directory, self.said = directory, []
        self._recorder, self.checkpoints, self.ends, self.paused = (
            recorder,
            RunCheckpoints(directory),
            lambda action: DONE,
            False,
        )

    def request(self, partitions=5, sleep=None):
        return request_repartition(self.directory, partitions, self.said.append, sleep or self.rounds)

    def rounds(self, seconds=0.0):
        """Run the controller for some rounds."""
        plant = RunOnCheckpoints(self.checkpoints, lambda action: self.ends(action))
        extensions, journal = (RequestExtension(self.directory),), Journal(self.directory.journal)
        observers = [self._recorder]
        paused = lambda: self.paused  # noqa: E731
        loop = Loop(
            plant, Static(hosts=1), observers=observers, extensions=extensions, journal=journal, paused=paused, limit=3.0
        )
        self._recorder.ended = lambda ending: None  # the run goes on
        loop.run()

    @property
    def journaled(self):
        entries = [each for each in Journal(self.directory.journal).entries if isinstance(each.action, Repartition)]
        return [(each.state, each.reason) for each in entries]


@pytest.fixture
def live(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(repartitioning, "SPARK", "4.2.0")
    with live_run(tmp_path / "run", 4) as (directory, recorder):
        checkpoint(directory.root / "checkpoint" / "source", rows=(1,) * 4)
        os.utime(directory.lock, (time.time() - 60, time.time() - 60))
        yield LiveRun(directory, recorder)


def took(tmp_path, live, seconds):
    size = changes.checkpoint_state(live.directory.root / "checkpoint" / "source").megabytes
    add_pause(tmp_path / "cache" / changes.PAUSES, Pause(9, size, seconds))


def test_live_run_answers_the_command_and_journals(live, tmp_path):
    took(tmp_path, live, 8.0)
    assert live.request() == f"{live.directory.root} has 5 state partitions (4 before): {DONE[1]} (predicted: about 8 s)"
    assert live.said == [
        "the pause is about 8 s, by earlier repartitions on this machine, and begins after the running batch"
    ]
    assert live.journaled == [(ActionState.DONE, DONE[1])]


def test_failure_of_the_run_is_that_of_the_command(live):
    live.ends = lambda action: (Status.FAILED, "rows differ: nothing is changed")
    with pytest.raises(ElastreamError, match=r"the repartition of .* failed: rows differ: nothing is changed"):
        live.request()


def test_paused_run_refuses(live):
    live.paused = True
    with pytest.raises(ElastreamError, match="is refused: paused"):
        live.request()
    assert live.journaled == []


def test_longest_pause_of_the_run_holds_for_requests_too(live, tmp_path):
    took(tmp_path, live, 70.0)
    live.checkpoints.rule = RepartitionRule("0 3 * * *", 60.0)
    with pytest.raises(ElastreamError, match=r"is refused: the pause would be about 70 s, above the limit of 60\.0 s"):
        live.request()


def test_request_needs_no_minute_of_the_window(live):
    live.checkpoints.rule = RepartitionRule("0 0 31 2 *", 60.0)
    assert "has 5 state partitions" in live.request()


def test_run_on_spark_before_its_repartition_refuses(live, monkeypatch):
    monkeypatch.setattr(repartitioning, "SPARK", "4.1.4")
    with pytest.raises(ElastreamError, match=r"Spark 4\.2 or newer, and this is 4\.1\.4"):
        live.request()


@pytest.mark.parametrize(
    ("partitions", "store", "sentence"),
    [
        (4, "RocksDBStateStoreProvider", "source has 4 state partitions already"),
        (0, "RocksDBStateStoreProvider", "partitions is 0: it must be from 1 to 10,000"),
        (10_001, "RocksDBStateStoreProvider", "partitions is 10001: it must be from 1 to 10,000"),
        (
            5,
            "HDFSBackedStateStoreProvider",
            "keeps its state in HDFSBackedStateStoreProvider: Spark repartitions RocksDB only",
        ),
    ],
)
def test_impossible_request_is_not_filed(tmp_path, partitions, store, sentence):
    with live_run(tmp_path / "run", 4) as (directory, _):
        checkpoint(directory.root / "checkpoint" / "source", rows=(1,) * 4, store=store)
        result = invoke("repartition", directory.root, "--partitions", partitions)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert sentence in result.stderr
        assert not directory.requests.exists()


def test_second_command_is_refused(live):
    with process_lock(live.directory.repartition_lock, str):
        result = invoke("repartition", live.directory.root, "--partitions", 5)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"process {os.getpid()} repartitions {live.directory.root} already" in result.stderr


def test_awake_run_that_sleeps_between_is_refused(live):
    with process_lock(live.directory.controller_lock, str), pytest.raises(ElastreamError, match="while it sleeps"):
        live.request()


@pytest.mark.parametrize("ends", [lambda lock: lock.unlink(), os.utime], ids=["it ends", "its driver is started again"])
def test_run_that_ends_without_an_answer_is_named(tmp_path, ends):
    with live_run(tmp_path / "run", 4) as (directory, _):
        checkpoint(directory.root / "checkpoint" / "source", rows=(1,) * 4)

        def dies(seconds):
            ends(directory.lock)

        with pytest.raises(ElastreamError, match="ended before its answer: see 'elastream state'"):
            request_repartition(directory, 5, str, dies)


def test_interrupted_command_withdraws_and_tells_what_came_of_it(live):
    interrupted = []

    def sleep(seconds):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        live.rounds()

    with pytest.raises(KeyboardInterrupt):
        live.request(sleep=sleep)
    assert live.said[1:] == [
        "the request is withdrawn: the run keeps or restores its partitions",
        f"the repartition of {live.directory.root} is refused: its command has ended",
    ]
    assert live.journaled == [(ActionState.REFUSED, "its command has ended")]


@contextmanager
def requested(live, partitions=5):
    """The action of a request whose command waits inside the context."""
    with process_lock(live.directory.repartition_lock, str):
        request = RequestLog(live.directory.requests).append(Request("repartition", "x", partitions=partitions))
        yield Repartition(partitions, requested=request.time)


def test_end_of_the_command_ends_the_pause(live):
    with requested(live) as action:
        limit = live.checkpoints.limit(action)
        limit.check()
    with pytest.raises(Withdrawn, match="its command has ended: nothing is changed"):
        limit.check()


def test_later_command_withdraws_the_request_of_an_earlier_one(live):
    with requested(live) as earlier:
        pass
    with requested(live, 6) as later:
        assert live.checkpoints.is_withdrawn(earlier)
        assert not live.checkpoints.is_withdrawn(later)
        live.rounds()
    assert [each.action.partitions for each in Journal(live.directory.journal).entries] == [6]


def test_repartition_by_the_run_itself_is_never_withdrawn(live):
    assert not live.checkpoints.is_withdrawn(Repartition(8))
    assert live.checkpoints.refusal(Repartition(8)) == "the run has no setting `repartition`"


def test_request_is_not_repeated_after_a_resume(live):
    tried = []

    def dies(action):
        tried.append(action)
        raise SystemExit

    live.ends = dies
    with requested(live):
        with pytest.raises(SystemExit):
            live.rounds()
        live.directory.lock.touch()
        os.utime(live.directory.lock, (time.time() + 60, time.time() + 60))  # the next driver's
        live.rounds()
    assert len(tried) == 1
    assert live.journaled == [(ActionState.REFUSED, "the run was resumed since the request")]


def test_pause_without_a_limit_has_none():
    limit = PauseLimit(now=lambda: 1e9)
    limit.check()
    assert limit.left == float("inf")
