"""The life of hosts, leased and found in a session; driver, provider and clock are fakes."""

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.clouds.executors import ExecutorProvider
from elastream.clouds.provider import UNLIMITED, ProviderOffer, RunState
from elastream.core.hosts import TRANSITIONS, Billing, HostState, HostType
from elastream.core.observation import Leases
from elastream.errors import CloudError
from elastream.spark.hosts import hosts as module
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.executors import Executors
from support.fake_clock import FakeClock
from support.fake_provider import SMALL, FakeProvider
from support.fake_session import FakeSession

TYPE = HostType("executor", cores=2, slots=2, price=0.0, start=15.0)


@pytest.fixture
def session():
    return FakeSession(
        {"driver": ("10.0.0.1", 0, 0, False), "0": ("10.0.0.2", 2, 0, False), "1": ("10.0.0.3", 2, 0, False)}
    )


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def provider():
    return FakeProvider()


def test_executors_that_are_there_cost_what_they_are_taken_for(session, clock):
    priced = HostType("executor", cores=2, slots=2, price=0.5, billing=Billing(10.0))
    granted = ExecutorProvider(ProviderOffer((priced,), 10), session)
    hosts = Hosts(
        Executors(session), granted, clock.now, fence=session.fence, session=granted, existing=lambda slots: priced
    )  # fmt: skip
    hosts.look()
    assert {lease.type.name for lease in hosts.leases.values()} == {"executor-2"}, "told apart from what is leased"
    assert hosts.cost(15.0) == 2 * 2 * 0.5, "two units of ten seconds have begun of each"
    assert hosts.leased == ()


def asked_of_spark(session, clock, allowed=UNLIMITED):
    """Hosts that are executors of the session, more of which Spark is asked for."""
    executors = Executors(session)
    provider = ExecutorProvider(ProviderOffer((TYPE,), 10, patience=90.0), session, allowed=allowed)
    found = Hosts(executors, provider, clock.now, fence=session.fence, session=provider)
    found.look()
    return found


@pytest.fixture
def found(session, clock):
    return asked_of_spark(session, clock, allowed=2)


@pytest.fixture
def run(provider, clock):
    """Hosts of a run: leased of a provider, in a session that has no others."""
    session = FakeSession()
    hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence)
    hosts.session = session
    return hosts


@pytest.fixture
def beside(session, provider, clock):
    """Hosts of a provider beside those that the session has anyway."""
    executors = Executors(session)
    others = ExecutorProvider(ProviderOffer((TYPE,), 10), session)
    hosts = Hosts(executors, provider, clock.now, fence=session.fence, session=others)
    hosts.look()
    return hosts


def step(hosts, batch=0, *, idle=False, holds=False):
    hosts.look()
    hosts.step(batch=batch, idle=idle, holds=lambda host: holds)
    return {name: lease.state.value for name, lease in hosts.leases.items()}


def works(run, host, clock):
    """A leased host of a run that takes tasks."""
    run.lease(host, SMALL)
    run.session.there[host.removeprefix("h")] = (f"at {host}", 1, 0, False)
    step(run)
    assert run.state(host) is HostState.RUNNING


class TestFound:
    def test_executors_that_are_there_are_hosts_and_the_driver_is_none(self, found):
        assert found.usable == ("h1", "h2")
        assert dict(found.host_of()) == {"0": "h1", "1": "h2"}
        assert found.describe("h2") == "executor 1 (10.0.0.3)"
        assert found.leases["h1"].type.cores == 2
        assert found.leased == ()

    def test_in_local_mode_the_driver_is_the_host(self, session, clock):
        session.there = {"driver": ("10.0.0.1", 4, 0, False)}
        assert dict(asked_of_spark(session, clock).host_of()) == {"driver": "h1"}

    def test_a_requested_executor_takes_the_name_of_its_request(self, found, session):
        found.lease("h7", TYPE)
        assert session.totals == [3]
        assert found.state("h7") is HostState.REQUESTED
        session.there["2"] = ("10.0.0.4", 2, 0, False)
        found.look()
        assert found.state("h7") is HostState.RUNNING
        assert found.target("h7").executor == "2"
        assert found.next_number == 8
        assert found.leased == ("h7",)

    def test_a_decommissioned_executor_takes_nothing_and_may_come_back(self, found, session):
        session.there["0"] = ("10.0.0.2", 2, 0, True)
        found.look()
        assert found.state("h1") is HostState.DRAINING
        assert found.leaving("h1")
        assert found.target("h1") is None
        session.there["0"] = ("10.0.0.2", 2, 0, False)
        found.look()
        assert found.state("h1") is HostState.RUNNING

    def test_an_executor_that_is_gone_unasked_is_lost_with_a_reason(self, found, session):
        del session.there["0"]
        found.look()
        assert found.state("h1") is HostState.LOST
        assert found.reason("h1") == "executor 0 is gone"
        assert session.totals == []

    def test_an_empty_host_is_released_after_two_batches(self, found, session):
        found.release("h2")
        step(found, 5, holds=True)
        assert session.fenced == []
        step(found, 6)
        assert session.fenced == ["1"]
        step(found, 7)
        assert session.killed == []
        step(found, 8)
        assert (session.killed, session.totals) == (["1"], [1])
        del session.there["1"]
        found.look()
        assert found.state("h2") is HostState.RELEASED
        assert found.usable == ("h1",)

    def test_a_request_without_room_is_withdrawn(self, found, session, clock):
        found.lease("h3", TYPE)
        clock.advance(89.0)
        assert step(found)["h3"] == "requested"
        clock.advance(2.0)
        assert step(found)["h3"] == "released"
        assert session.totals == [3, 2]

    def test_use_is_what_tasks_took_of_the_slots_and_unknown_at_first(self, found, session, clock):
        assert found.use("h1") != found.use("h1")
        clock.advance(10)
        session.there["0"] = ("10.0.0.2", 2, 5_000, False)
        found.look()
        assert found.use("h1") == pytest.approx(0.25)

    def test_letting_go_ends_every_lease_and_no_executor(self, found, session):
        found.close()
        assert not any(lease.active for lease in found.leases.values())
        assert session.killed == []


class TestBeside:
    """A provider's hosts in a session that has executors of its own."""

    def test_a_leased_host_is_the_executor_at_its_address_and_others_are_found(self, beside, session, provider):
        beside.lease("h3", TYPE)
        assert beside.state("h3") is HostState.STARTING
        session.there["2"] = ("10.1.0.9", 2, 0, False)
        session.there["3"] = ("at h3", 2, 0, False)
        beside.look()
        assert (beside.host_of()["3"], beside.host_of()["2"]) == ("h3", "h4")
        beside.release("h3")
        for batch in (1, 3):
            step(beside, batch)
        assert provider.released == ["h3"]
        assert (session.killed, session.totals) == ([], [])

    def test_an_ended_hosts_executor_is_no_new_host(self, beside, session):
        beside.lease("h3", TYPE)
        session.there["3"] = ("at h3", 2, 0, False)
        beside.look()
        beside.release("h3")
        for batch in (1, 3, 5):
            step(beside, batch)
        assert beside.state("h3") is HostState.RELEASED
        assert set(beside.leases) == {"h1", "h2", "h3"}

    def test_a_host_leased_after_releasing_a_found_one_gets_an_executor(self, beside, session):
        """Spark's total is limited from the moment that an executor was given back: it must grow with what is leased."""
        beside.release("h2")
        for batch in (1, 3):
            step(beside, batch)
        assert (session.killed, session.totals) == (["1"], [1])
        del session.there["1"]
        beside.lease("h3", TYPE)
        step(beside, 4)
        assert session.totals == [1, 2]


class TestLeased:
    def test_a_host_waits_and_starts_once_there_is_room(self, run, provider, caplog):
        caplog.set_level("INFO")
        provider.room = 0
        run.lease("h1", SMALL)
        for _ in range(2):
            assert step(run) == {"h1": "requested"}
        assert run.reason("h1") == "it waits"
        assert [record.message for record in caplog.records] == ["host h1 is requested: it waits"]
        provider.room = 1
        assert step(run) == {"h1": "starting"}

    def test_the_first_host_waits_as_long_as_it_takes(self, run, provider, clock):
        provider.room = 0
        run.lease("h1", SMALL)
        clock.advance(100 * provider.patience)
        assert step(run) == {"h1": "requested"}

    def test_a_further_host_is_withdrawn_if_nothing_starts_for_a_while(self, run, provider, clock):
        works(run, "h1", clock)
        provider.room = 1
        run.lease("h2", SMALL)
        clock.advance(provider.patience)
        assert step(run)["h2"] == "requested"
        clock.advance(1.0)
        assert step(run)["h2"] == "released"
        assert run.reason("h2") == "withdrawn: nothing started for 31 s"
        assert provider.released == ["h2"]

    def test_a_host_whose_turn_has_not_come_is_not_withdrawn(self, run, provider, clock):
        works(run, "h1", clock)
        provider.room = 2
        run.lease("h2", SMALL)
        run.lease("h3", SMALL)
        for _ in range(0, 80, 10):
            assert step(run) == {"h1": "running", "h2": "starting", "h3": "requested"}
            clock.advance(10.0)

    def test_what_the_provider_refuses_is_raised_and_the_host_is_lost(self, run, provider):
        provider.refuses = "no more"
        with pytest.raises(CloudError, match="no more"):
            run.lease("h1", SMALL)
        assert run.state("h1") is HostState.LOST
        assert run.reason("h1") == "no more"

    def test_a_host_lost_by_its_provider_is_lost_with_the_reason(self, run, provider, clock):
        works(run, "h1", clock)
        provider.die("h1", "its plug was pulled")
        assert step(run) == {"h1": "lost"}
        assert run.reason("h1") == "its plug was pulled"
        assert not provider.hosts()

    def test_a_host_without_an_executor_for_long_is_lost_and_released(self, run, provider, clock):
        run.lease("h1", HostType("quick", cores=1, start=8.0))
        step(run)
        clock.advance(module.START_TIMEOUT_S + 1)
        assert step(run) == {"h1": "lost"}
        assert run.reason("h1") == "no executor registered within 90 s"
        assert not provider.hosts()

    @pytest.mark.parametrize(("idle", "limit"), [(False, module.GRACE_TIMEOUT_S), (True, module.IDLE_TIMEOUT_S)])
    def test_a_host_whose_batches_do_not_end_is_not_waited_for(self, run, provider, clock, idle, limit):
        works(run, "h1", clock)
        run.release("h1")
        clock.advance(limit - 1)
        step(run, 5, idle=idle, holds=True)
        assert run.session.fenced == []
        clock.advance(2)
        step(run, 5, idle=idle, holds=True)
        assert run.session.fenced == ["1"]
        clock.advance(limit + 1)
        step(run, 5, idle=idle, holds=True)
        assert step(run) == {"h1": "released"}

    def test_a_draining_host_that_only_runs_strays_gets_no_more_tasks(self, run, clock):
        works(run, "h1", clock)
        works(run, "h2", clock)
        run.step(batch=1, idle=False, holds=lambda host: False, overrun={"h1"})
        assert run.session.fenced == [], "it works"
        assert run.provider.reports[-1].holding == {"h1"}, "its strays have state there"
        run.drain("h1")
        run.step(batch=2, idle=False, holds=lambda host: False)
        assert run.session.fenced == [], "the drain may be cancelled"
        for batch in (3, 4):
            run.step(batch=batch, idle=False, holds=lambda host: False, overrun={"h1"})
        assert run.session.fenced == ["1"]
        assert run.leaving("h1")
        run.look()
        assert Leases(run.leases).recoverable == ()
        run.release("h1")
        step(run, 3 + module.GRACE_BATCHES)
        assert run.session.fenced == ["1"]
        assert step(run) == {"h1": "released", "h2": "running"}

    def test_a_new_executor_of_a_draining_host_does_not_end_the_drain(self, run, clock):
        works(run, "h1", clock)
        works(run, "h2", clock)
        run.drain("h1")
        run.step(batch=1, idle=False, holds=lambda host: False, overrun={"h1"})
        run.session.there["1"] = ("at h1", 1, 0, True)
        step(run)
        del run.session.there["1"]
        run.session.there["8"] = ("at h1", 1, 0, False)
        assert step(run) == {"h1": "draining", "h2": "running"}
        assert not run.leaving("h1")

    def test_the_last_executor_gets_tasks_while_its_host_drains(self, run, clock):
        works(run, "h1", clock)
        works(run, "h2", clock)
        run.drain("h1")
        del run.session.there["2"]
        step(run)
        run.step(batch=1, idle=False, holds=lambda host: False, overrun={"h1"})
        assert run.usable == ("h2",)
        assert run.session.fenced == []

    def test_a_host_is_settled_once_it_has_finished_its_first_batches(self, run, provider, clock):
        works(run, "h1", clock)
        assert provider.reports[-1] == RunState(ready=frozenset({"h1"}))
        for batch in range(module.SETTLING_BATCHES + 1):
            step(run, batch)
        assert provider.reports[-1] == RunState(ready=frozenset({"h1"}))
        step(run, module.SETTLING_BATCHES + 1)
        assert provider.reports[-1] == RunState(ready=frozenset({"h1"}), settled=frozenset({"h1"}))
        assert len(provider.reports) == 2

    def test_a_host_whose_executor_never_gets_warm_is_lost_for_that(self, provider, clock):
        session, never = FakeSession(), threading.Event()
        hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence, warm=lambda _: never.wait(60) and None)
        hosts.lease("h1", HostType("quick", cores=1, start=8.0))
        session.there["1"] = ("at h1", 1, 0, False)
        assert step(hosts) == {"h1": "starting"}
        clock.advance(module.START_TIMEOUT_S + 1)
        assert step(hosts) == {"h1": "lost"}
        assert hosts.reason("h1") == "its executor was not warm within 90 s"
        never.set()

    def test_an_executor_whose_slots_others_take_before_it_is_warm_is_kept(self, provider, clock):
        session, never = FakeSession(active={"1": 2}), threading.Event()
        hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence, warm=lambda _: never.wait(60) and None)
        hosts.lease("h1", HostType("quick", cores=1, start=8.0))
        session.there["1"] = ("at h1", 2, 0, False)
        step(hosts)
        clock.advance(module.START_TIMEOUT_S + 1)
        step(hosts)
        assert step(hosts) == {"h1": "running"}
        never.set()

    def test_a_replacement_executor_takes_tasks_once_it_is_warm(self, provider, clock):
        session, let_go = FakeSession({"7": ("at h1", 1, 0, False)}), threading.Event()

        def warm(executor):
            assert executor.id == "7" or let_go.wait(60)

        hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence, warm=warm)
        hosts.lease("h1", SMALL)
        while step(hosts)["h1"] != "running":
            pass
        assert hosts.target("h1").executor == "7"
        assert list(hosts.milestones("h1")) == ["lease", "spawned", "registered", "warm"]
        session.there = {"8": ("at h1", 1, 0, False)}
        step(hosts)
        assert (hosts.usable, hosts.host_of(), hosts.target("h1")) == (("h1",), {"8": "h1"}, None)
        let_go.set()
        while hosts.target("h1") is None:
            step(hosts)
        assert hosts.target("h1").executor == "8"

    def test_a_failed_warm_up_is_logged_and_the_host_takes_tasks(self, provider, clock, caplog):
        def broken(executor):
            raise RuntimeError("no library")

        session = FakeSession({"7": ("at h1", 1, 0, False)})
        hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence, warm=broken)
        hosts.lease("h1", SMALL)
        while step(hosts)["h1"] != "running":
            pass
        assert "no library" in caplog.text


class TestOwner:
    """Hosts that somebody else owns."""

    def test_a_recalled_host_is_named_until_it_goes_or_is_kept(self, run, provider, clock):
        works(run, "h1", clock)
        works(run, "h2", clock)
        provider.recalled = {"h1", "h2"}
        step(run)
        assert run.recalled == ("h1", "h2")
        run.release("h1")
        run.keep("h2")
        assert run.recalled == ()
        step(run, holds=True)
        assert provider.reports[-1].kept == {"h2"}

    def test_a_kept_host_is_recalled_anew_where_its_owner_had_given_up(self, run, provider, clock):
        works(run, "h1", clock)
        provider.recalled = {"h1"}
        step(run)
        run.keep("h1")
        provider.recalled = set()
        step(run)
        assert provider.reports[-1].kept == frozenset()
        provider.recalled = {"h1"}
        step(run)
        assert run.recalled == ("h1",)

    def test_cost_is_what_the_owner_says_or_else_what_the_leases_cost(self, run, provider, clock):
        works(run, "h1", clock)
        assert run.cost(0.0) == SMALL.price
        provider.owes = 12.0
        assert run.cost(0.0) == 12.0


NAMES = [f"h{number}" for number in range(1, 6)]
EVENTS = st.tuples(
    st.sampled_from(["lease", "release", "drain", "cancel", "die", "register", "vanish", "room", "recall", "step"]),
    st.sampled_from(NAMES),
    st.integers(0, 40),
)


@given(st.lists(EVENTS, max_size=80))
def test_leases_follow_the_transition_table_and_end_at_the_provider(story):  # noqa: C901
    session, provider, clock = FakeSession(), FakeProvider(), FakeClock()
    hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence)
    batch = 0
    for event, host, number in story:
        lease = hosts.leases.get(host)
        match event:
            case "lease" if lease is None:
                hosts.lease(host, SMALL)
            case "release" if lease is not None and lease.active:
                hosts.release(host)
            case "drain" if lease is not None and lease.state is HostState.RUNNING:
                hosts.drain(host)
            case "cancel" if lease is not None and lease.state is HostState.DRAINING:
                hosts.cancel_drain(host)
            case "die" if host in provider.known:
                provider.die(host)
            case "register" if host in provider.up:
                session.there[host[1:]] = (f"at {host}", 1, 0, False)
            case "vanish":
                session.there.pop(host[1:], None)
            case "room":
                provider.room = number % 4
            case "recall":
                provider.recalled ^= {host}
                hosts.keep(host)
            case "step":
                batch += number % 3
                clock.advance(float(number))
                step(hosts, batch, idle=number % 2 == 0, holds=number % 5 == 0)
        for lease in hosts.leases.values():
            states = [state for _, state in lease.history]
            assert all(after in TRANSITIONS[before] for before, after in pairwise(states)), states
        assert {name for name, host in hosts.leases.items() if host.active} >= set(hosts.usable)
    for name, lease in hosts.leases.items():
        if lease.active:
            hosts.release(name)
    for _ in range(4):
        clock.advance(module.GRACE_TIMEOUT_S + 1)
        step(hosts, batch := batch + 3)
    assert not any(lease.active for lease in hosts.leases.values())
    assert not provider.known, "a host without a lease is nobody's to pay for"
