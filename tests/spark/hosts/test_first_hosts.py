"""What becomes of leases when their driver is killed: what a provider lists at the end is leased."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.clouds.provider import ProviderOffer
from elastream.core.hosts import HostState, HostType, Lease
from elastream.recording.lease_log import LeaseLog
from elastream.recording.lines import JournalProblem
from elastream.spark.hosts.first_hosts import EarlierLeases, Resumed, first_hosts, lease_first_hosts, take_over
from elastream.spark.hosts.hosts import Hosts
from elastream.spark.jvm.executors import Executors
from support.fake_clock import FakeClock
from support.fake_provider import SMALL, FakeProvider
from support.fake_session import FakeSession

BIG = HostType("big", cores=4.0)


class Killed(Exception):
    """The driver's end, where a test puts it."""


def driver(provider, path, clock, resumed=None):
    """The hosts of a run, as `start_plant` begins or resumes them."""
    log, session = LeaseLog(path), FakeSession()
    first = lease_first_hosts(log, provider, resumed, clock.now())
    hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence, log=log)
    hosts.begin(first)
    return hosts


def look(hosts):
    hosts.look()
    hosts.step(batch=0, idle=True, holds=lambda host: False)


def test_present_hosts_are_adopted_and_missing_ones_replaced(tmp_path):
    provider, clock = FakeProvider((SMALL, BIG)), FakeClock()
    hosts = driver(provider, tmp_path / "leases", clock)
    hosts.lease("h2", BIG)
    hosts.lease("h3", SMALL)
    clock.sleep_until(5.0)
    hosts.release("h3")
    provider.release(["h2"])  # it went together with the driver
    clock.sleep_until(60.0)
    hosts = driver(provider, tmp_path / "leases", clock, Resumed(60.0, 40.0))
    assert [*hosts.taken_over.adopted] == ["h1", "h3"]  # that h3 was to be released is in the journal of actions
    assert [*hosts.taken_over.gone] == ["h2"]
    look(hosts)
    leases = hosts.leases
    assert (leases["h1"].since, leases["h1"].active) == (0.0, True)
    assert (leases["h2"].state, leases["h2"].until) == (HostState.LOST, 40.0)
    assert "gone when it was to be taken over; last seen at 40 s" in hosts.reason("h2")
    assert (leases["h4"].type, leases["h4"].since) == (BIG, 60.0)


def test_an_orphan_that_cannot_be_recorded_is_released_later(tmp_path):
    provider, clock = FakeProvider((SMALL, BIG)), FakeClock()
    hosts = driver(provider, tmp_path / "leases", clock)
    file = hosts._log._lines._file
    hosts._log._lines._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    provider.lease({"stray": BIG})
    for _ in range(2):
        with pytest.raises(JournalProblem, match="No space left"):
            look(hosts)
        assert [*hosts.leases] == ["h1"]
    hosts._log._lines._file = file
    look(hosts)
    assert [*provider.known] == ["h1"]
    assert LeaseLog(tmp_path / "leases").earlier["stray"].state is HostState.RELEASED


def test_hosts_of_somebody_elses_provider_are_no_orphans():
    provider, session = FakeProvider(), FakeSession()
    hosts = Hosts(Executors(session), provider, FakeClock().now, fence=session.fence)
    provider.lease({"stray": SMALL})
    look(hosts)
    assert [*provider.known] == ["stray"]


def autopilot(provider, path, clock, epoch):
    """The hosts of an Autopilot that begins at epoch second `epoch`, with its own time 0."""
    log, session = LeaseLog(path).counted_from(epoch), FakeSession()
    hosts = Hosts(Executors(session), provider, clock.now, fence=session.fence, log=log, alone=False)
    hosts.take_over(take_over(log, provider, last_seen=0.0))
    return hosts


def test_the_next_autopilot_adopts_its_hosts_and_leaves_those_of_others(tmp_path):
    provider, path = FakeProvider(), tmp_path / "leases"
    first = autopilot(provider, path, clock := FakeClock(), epoch=1000.0)
    clock.sleep_until(20.0)
    first.lease("h1", SMALL)
    first.lease("h2", SMALL)
    provider.lease({"others": SMALL})
    first.close(ended=False)  # it was stopped: the provider is its caller's, and goes on
    provider.release(["h2"])
    second = autopilot(provider, path, FakeClock(), epoch=1100.0)
    look(second)
    assert {host: (lease.since, lease.active) for host, lease in second.leases.items()} == {"h1": (-80.0, True)}
    assert [*provider.known] == ["h1", "others"]
    assert second.next_number == 3
    assert LeaseLog(path).earlier["h2"].state is HostState.LOST


def test_what_cannot_be_written_is_not_leased(tmp_path):
    provider = FakeProvider()
    hosts = driver(provider, tmp_path / "leases", FakeClock())
    hosts._log._lines._file.close()
    hosts._log._lines._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(JournalProblem, match="No space left"):
        hosts.lease("h2", SMALL)
    assert [*provider.known] == [*hosts.leases] == ["h1"]


@pytest.mark.parametrize(
    ("gone", "adopted", "expected"), [(0, 0, 2), (1, 0, 2), (5, 0, 5), (12, 0, 10), (4, 8, 2), (0, 3, 0)]
)
def test_a_run_goes_on_as_wide_as_it_was_within_its_bounds(gone, adopted, expected):
    names = [f"h{n}" for n in range(gone + adopted)]
    before = EarlierLeases(
        adopted={name: Lease(name, SMALL, 0.0) for name in names[gone:]},
        gone={name: Lease(name, SMALL, 0.0).to(HostState.LOST, 1.0) for name in names[:gone]},
    )
    first = first_hosts(ProviderOffer((SMALL,), max_hosts=10, min_hosts=2), before)
    assert len(first) == expected
    assert not first.keys() & set(names)


@given(
    steps=st.lists(st.sampled_from(["lease", "release", "look", "die", "stray"]), max_size=12),
    crash=st.integers(0, 30),
    after=st.booleans(),
)
def test_wherever_a_driver_is_killed_nothing_leaks(tmp_path_factory, steps, crash, after):  # noqa: C901
    """crash: number of the call to the provider in which it is killed; after: once the provider has done it, or before."""
    path, clock, calls = tmp_path_factory.mktemp("run") / "leases", FakeClock(), [0]

    class Mortal(FakeProvider):
        def lease(self, hosts):
            self._call(lambda: FakeProvider.lease(self, hosts))

        def release(self, hosts):
            self._call(lambda: FakeProvider.release(self, hosts))

        def _call(self, do):
            calls[0] += 1
            if calls[0] == crash and not after:
                raise Killed
            do()
            if calls[0] == crash:
                raise Killed

    provider = Mortal()
    try:
        hosts = driver(provider, path, clock)
        for number, step in enumerate(steps):
            clock.sleep_until(float(number))
            active = [name for name, lease in hosts.leases.items() if lease.active]
            match step:
                case "lease":
                    hosts.lease(f"h{hosts.next_number}", SMALL)
                case "release" if active:
                    hosts.release(active[-1])
                case "die" if active:
                    provider.die(active[0])
                case "stray":
                    FakeProvider.lease(provider, {f"s{number}": SMALL})
            look(hosts)
    except Killed:
        pass
    crash = -1
    hosts = driver(provider, path, clock, Resumed(100.0, 50.0))
    for _ in range(3):
        clock.sleep_until(clock.now() + 40.0)
        look(hosts)
    active = {name for name, lease in hosts.leases.items() if lease.active}
    assert set(provider.known) == active
    earlier = LeaseLog(path).earlier
    assert {name for name, lease in earlier.items() if lease.active} == active
    assert set(earlier) == set(hosts.leases)
