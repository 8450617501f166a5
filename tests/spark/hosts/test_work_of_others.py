"""Executors that others use: they stay while work without an end is there, and wait for the rest before they go."""

import pytest

from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.provider import ProviderOffer
from elastream.core.action import DrainHost, ReleaseHost, Status
from elastream.core.hosts import HostState, HostType
from elastream.spark.hosts.actions import HostActions
from elastream.spark.hosts.hosts import GRACE_BATCHES, Hosts
from elastream.spark.jvm.executors import Executors
from support.fake_clock import FakeClock
from support.fake_session import FakeSession, FakeUse, task_line

TYPE = HostType("executor", cores=2, slots=2, price=0.0, start=15.0)
ENDLESS = task_line("1", label="fast", mode="with a continuous trigger")


class Bench:
    """Two executors of a session, `h1` and `h2`; uses of them are lines."""

    def __init__(self, drain_timeout=60.0):
        self.session = FakeSession({"0": ("10.0.0.2", 2, 0, False), "1": ("10.0.0.3", 2, 0, False)})
        self.use, self.clock, self.batch = FakeUse(), FakeClock(), 0
        provider = ExecutorProvider(ProviderOffer((TYPE,), 10), self.session)
        self.hosts = Hosts(
            Executors(self.session, self.use, lambda query: query == "q"),
            provider,
            self.clock.now,
            fence=self.session.fence,
            session=provider,
            drain_timeout=drain_timeout,
        )
        self.actions = HostActions(self.hosts, {"executor": TYPE}, 4, lambda host: None)
        self.hosts.look()

    def pass_batches(self, *uses, seconds=1.0):
        self.use.lines = list(uses)
        for _ in range(GRACE_BATCHES + 1):
            self.clock.advance(seconds)
            self.hosts.look()
            self.hosts.step(batch=self.batch, idle=False, holds=lambda host: False)
            self.batch += 1


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize("action", [DrainHost("h2"), ReleaseHost("h2")], ids=["drain", "release"])
def test_executor_with_a_task_without_end_stays(bench, action):
    bench.use.lines = [ENDLESS]
    bench.hosts.look()
    handler = bench.actions.drain if isinstance(action, DrainHost) else bench.actions.release
    outcome = handler(action)
    assert outcome.status is Status.REFUSED
    assert outcome.reason == "it must stay: 1 task of fast, which runs with a continuous trigger"
    assert bench.actions.release(ReleaseHost("h1")).succeeded, "nothing without end runs there"


def test_executor_is_not_cut_off_from_a_task_without_end_that_comes_late(bench):
    assert bench.actions.release(ReleaseHost("h2")).succeeded
    bench.pass_batches(ENDLESS, seconds=1_000.0)
    assert (bench.session.fenced, bench.session.killed) == ([], [])
    bench.pass_batches()
    assert bench.session.killed == ["1"]


@pytest.mark.parametrize(
    "use",
    [task_line("1"), "shuffle\t1\t\tjoin\t3", "cache\t1\t\tcached data\t2", task_line("1", query="q")],
    ids=["task", "shuffle files", "cached blocks", "task of a watched query"],
)
def test_executor_waits_for_what_it_runs_and_keeps(bench, use):
    assert bench.actions.release(ReleaseHost("h2")).succeeded
    bench.pass_batches(use, seconds=10.0)
    assert bench.session.fenced == ["1"], "it gets no more tasks"
    assert bench.session.killed == []
    bench.pass_batches()
    assert bench.session.killed == ["1"]


def test_wait_ends_with_drain_timeout_and_names_what_is_cut_off(bench, caplog):
    assert bench.actions.release(ReleaseHost("h2")).succeeded
    bench.pass_batches(task_line("1", count=2), seconds=61.0)
    assert bench.session.killed == ["1"]
    assert "it cuts off 2 tasks of nightly" in caplog.text


def test_task_without_end_outlasts_drain_timeout(bench):
    assert bench.actions.release(ReleaseHost("h2")).succeeded
    bench.pass_batches(task_line("1"))
    bench.pass_batches(task_line("1", seconds=700.0, ended=0), seconds=1_000.0)
    assert bench.session.fenced == ["1"]
    assert bench.session.killed == []
    assert bench.hosts.state("h2") is HostState.RELEASING


def test_hosts_tell_what_others_have_there(bench):
    bench.use.lines = [task_line("0", query="q"), task_line("1"), "busy\t1\t\t9000"]
    bench.clock.advance(1.0)
    bench.hosts.look()
    assert (bench.hosts.others("h1"), bench.hosts.others("h2")) == ("", "1 task of nightly")
    assert (bench.hosts.shared("h1"), bench.hosts.shared("h2")) == (False, True)
    bench.clock.advance(10.0)
    bench.hosts.look()
    assert bench.hosts.use("h2") == 0.0, "slots that others fill are not the load's"
