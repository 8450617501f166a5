"""Queries stop for a repartition and go on, row by row of the table in queries/repartitioning.py, on fakes."""

import math
from functools import partial
from types import SimpleNamespace

import pytest

from elastream.core.action import Repartition, Status
from elastream.core.width import PauseLimit
from elastream.errors import ElastreamError, EnvironmentProblem
from elastream.spark.jvm import ending
from elastream.spark.jvm.ending import end_after_batch
from elastream.spark.queries import repartitioning
from elastream.spark.queries.repartitioning import Repartitioning

OLD, NEW = 4, 5


class Run:
    """A run of the queries `a` and `b`, with its checkpoints and all that happens to it in order.

    withdrawn_at: event at which the command of the request ends.
    """

    def __init__(self, *, withdrawn_at="", fails=(), longest=float("inf")):
        self.events, self._withdrawn_at, self._fails = [], withdrawn_at, fails
        self._clock, self._longest = 0.0, longest
        self.widths = dict.fromkeys("ab", OLD)
        self.running = [SimpleNamespace(query=Query(self, name), checkpoint=name) for name in "ab"]

    def happens(self, event):
        self.events.append(event)
        self._clock += 1.0
        if event in self._fails:
            raise EnvironmentProblem(f"{event} failed")

    def limit(self, action):
        return PauseLimit(self._longest, lambda: self._withdrawn_at in self.events, lambda: self._clock)

    def change(self, spark, checkpoint, partitions, limit):
        limit.check()
        name = str(checkpoint)
        self.happens(f"{name} gets {partitions}")
        self.widths[name] = partitions
        return Change(self, name)

    def changed(self, partitions):
        self.happens(f"manifest {partitions}")

    def start(self, composition, partitions):
        self.happens(f"start {partitions}")
        return (f"queries of {partitions}",)

    def repartitioned(self):
        return Repartitioning(None, self, self.start).apply(Repartition(NEW, requested=1.0), self.running, None, OLD)


class Query:
    def __init__(self, run, name):
        self._run, self._name = run, name

    def stop(self):
        self._run.happens(f"cut {self._name}")


class Change:
    rows = 20

    def __init__(self, run, name):
        self._run, self._name = run, name

    def undo(self):
        self._run.happens(f"undo {self._name}")
        self._run.widths[self._name] = OLD

    def keep(self):
        self._run.happens(f"keep {self._name}")


@pytest.fixture(autouse=True)
def batches(monkeypatch):
    """Batches that end after a moment, in which the limit is looked at once."""

    def end(spark, queries, check):
        queries[0]._run.happens("ending")
        check()

    monkeypatch.setattr(repartitioning, "end_after_batch", end)


def test_queries_go_on_with_the_new_width():
    run = Run()
    running, status, reason = run.repartitioned()
    assert run.events == ["ending", "a gets 5", "b gets 5", "manifest 5", "start 5", "keep a", "keep b"]
    assert (running, status) == (("queries of 5",), Status.DONE)
    assert reason == "40 rows of state, equal before and after; paused for 7.0 s"


@pytest.mark.parametrize(
    ("change", "events", "reason"),
    [
        ({"withdrawn_at": "ending"}, ["ending", "cut a", "cut b"], "its command has ended: nothing is changed"),
        ({"longest": 1.0}, ["ending", "cut a", "cut b"], "the pause became longer than 1.0 s: nothing is changed"),
        ({"withdrawn_at": "a gets 5"}, ["ending", "a gets 5", "undo a"], "its command has ended: nothing is changed"),
        ({"longest": 2.0}, ["ending", "a gets 5", "undo a"], "the pause became longer than 2.0 s: nothing is changed"),
        ({"fails": ["b gets 5"]}, ["ending", "a gets 5", "b gets 5", "undo a"], "b gets 5 failed"),
        (
            {"fails": ["start 5"]},
            ["ending", "a gets 5", "b gets 5", "manifest 5", "start 5", "undo b", "undo a"],
            "start 5 failed",
        ),
    ],
)
def test_queries_go_on_with_the_old_width(change, events, reason):
    run = Run(**change)
    assert run.repartitioned() == (("queries of 4",), Status.FAILED, reason)
    assert run.events == [*events, "manifest 4", "start 4"]
    assert set(run.widths.values()) == {OLD}


def test_end_of_the_command_changes_nothing_once_all_have_the_new_width():
    run = Run(withdrawn_at="b gets 5")
    assert run.repartitioned()[1] is Status.DONE
    assert set(run.widths.values()) == {NEW}


def test_run_fails_if_no_query_starts_again():
    with pytest.raises(ElastreamError, match="start 4 failed"):
        Run(fails=["start 5", "start 4"]).repartitioned()


class Trigger:
    """A query that waits for its trigger from look `waits_at` on, and ends by itself in look `ends_at` or when stopped."""

    def __init__(self, *, waits_at=math.inf, ends_at=math.inf):
        self._waits_at, self._ends_at, self.looks, self.stopped_at = waits_at, ends_at, 0, None
        package = "org.apache.spark.ACTIVE$"
        state = SimpleNamespace(
            get=lambda: SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: package)), set=lambda value: None
        )
        latch, thread = SimpleNamespace(getCount=self._count), SimpleNamespace(getStackTrace=self._frames)
        self.fields = {"state": state, "terminationLatch": latch, "queryExecutionThread": thread}
        self._jsq = SimpleNamespace(streamingQuery=lambda: self.fields)

    def _count(self):
        return int(self.stopped_at is None and self.looks < self._ends_at)

    def _frames(self):
        self.looks += 1
        name = "waitTillTime" if self.looks >= self._waits_at else "runBatch"
        return [SimpleNamespace(getMethodName=partial(str, each)) for each in ("sleep", name, "run")]

    def stop(self):
        self.stopped_at = self.looks

    def exception(self):
        return None


@pytest.fixture
def without_jvm(monkeypatch):
    monkeypatch.setattr(ending, "jvm_of", lambda spark: None)
    monkeypatch.setattr(ending, "module_of", lambda jvm, name: name)
    monkeypatch.setattr(ending, "field_of", lambda instance, name: instance[name])
    monkeypatch.setattr(ending, "LOOK_S", 0.0)


def test_batch_that_runs_or_is_about_to_is_not_cut_off(without_jvm):
    query = Trigger(ends_at=8)
    end_after_batch(None, [query], lambda: None)
    assert query.stopped_at is None


def test_idle_query_does_not_wait_for_its_trigger(without_jvm):
    query = Trigger(waits_at=3)
    end_after_batch(None, [query], lambda: None)
    assert query.stopped_at == 3
