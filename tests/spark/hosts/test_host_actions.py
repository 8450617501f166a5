"""Actions on hosts, applied to hosts with nothing behind them."""

import pytest

from elastream.core.action import ActionTable, CancelDrain, DrainHost, LeaseHost, ReleaseHost, RenewHost, Status
from elastream.core.hosts import HostState, HostType, Lease, total_cost
from elastream.spark.hosts.actions import HostActions
from elastream.spark.hosts.hosts import ENDED_LEASES, Hosts
from elastream.spark.jvm.executors import Executors
from support.fake_clock import FakeClock
from support.fake_provider import FakeProvider
from support.fake_session import FakeSession

SMALL = HostType("small", cores=1, region="edge")


def book(**states):
    """Hosts by name in the states given, of a provider without room."""
    session = FakeSession()
    hosts = Hosts(Executors(session), FakeProvider((SMALL,), room=0), FakeClock().now, fence=session.fence)
    for name, state in states.items():
        hosts.lease(name, SMALL)
        hosts._enter({name: Lease(name, SMALL, 0.0, state)})
    return hosts


def apply(hosts, action):
    table = ActionTable()
    hosts.handle(table)
    return table.apply(action)


@pytest.fixture
def emptied():
    return []


@pytest.fixture
def actions(emptied):
    def over(**states):
        return HostActions(book(**states), {"small": SMALL}, 3, emptied.append)

    return over


def test_a_host_is_leased_once_and_its_name_never_again(actions):
    hosts = actions(h1=HostState.RUNNING, h2=HostState.RELEASED)
    assert apply(hosts, LeaseHost("h3", "small")).status is Status.ACCEPTED
    assert apply(hosts, LeaseHost("h3", "small")).status is Status.DONE
    assert apply(hosts, LeaseHost("h2", "small")).reason == "host 'h2' was leased before and is released; take a new name"


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (LeaseHost("h9", "huge"), "there is no host type 'huge'"),
        (LeaseHost("", "small"), "a host needs a name"),
        (LeaseHost("h9", "small", "moon"), "hosts of type 'small' are in 'edge', not in 'moon'"),
        (LeaseHost("h9", "small"), "at most 3 hosts may be leased"),
        (RenewHost("h9"), "there is no host 'h9'"),
        (DrainHost("h3"), "host 'h3' is starting"),
        (CancelDrain("h3"), "host 'h3' is starting"),
        (ReleaseHost("h9"), "there is no host 'h9'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(actions, emptied, action, reason):
    outcome = apply(actions(h1=HostState.RUNNING, h2=HostState.DRAINING, h3=HostState.STARTING), action)
    assert (outcome.status, outcome.reason) == (Status.REFUSED, reason)
    assert emptied == []


@pytest.mark.parametrize(("action", "state"), [(DrainHost("h1"), "draining"), (ReleaseHost("h1"), "releasing")])
def test_a_leaving_host_is_emptied_once(actions, emptied, action, state):
    hosts = actions(h1=HostState.RUNNING, h2=HostState.RUNNING)
    assert apply(hosts, action).status is Status.ACCEPTED
    assert (hosts.hosts.state("h1"), emptied) == (state, ["h1"])
    assert apply(hosts, action).succeeded
    assert emptied == ["h1"]


@pytest.mark.parametrize("action", [DrainHost("h1"), ReleaseHost("h1")])
def test_the_only_host_that_takes_tasks_stays(actions, emptied, action):
    hosts = actions(h1=HostState.RUNNING, h2=HostState.STARTING, h3=HostState.DRAINING)
    assert apply(hosts, action).reason == "'h1' is the only host that takes tasks"
    assert hosts.hosts.usable == ("h1",)
    assert emptied == []


def test_a_drain_can_be_cancelled_and_a_request_withdrawn(actions):
    hosts = actions(h1=HostState.DRAINING, h2=HostState.REQUESTED)
    assert apply(hosts, CancelDrain("h1")).status is Status.DONE
    assert apply(hosts, CancelDrain("h1")).status is Status.DONE
    assert apply(hosts, ReleaseHost("h2")).status is Status.DONE
    assert hosts.hosts.state("h2") is HostState.RELEASED


def test_of_hosts_that_ended_the_newest_are_kept_and_the_others_still_cost():
    hosts, leased = book(), 3 * ENDED_LEASES
    for number in range(1, leased + 1):
        hosts.lease(f"h{number}", SMALL)
        hosts.release(f"h{number}")
        hosts._forget_ended()
        assert len(hosts.leases) < 2 * ENDED_LEASES
    assert hosts.next_number == leased + 1
    assert hosts.past.leases + len(hosts.leases) == leased
    assert hosts.past.facts["leases not kept: released"] == hosts.past.leases
    assert hosts.cost(0.0) == hosts.past.cost + total_cost(hosts.leases.values(), 0.0)
