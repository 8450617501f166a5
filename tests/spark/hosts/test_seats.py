"""Executors as hosts, from what the driver says of them; the driver is a list of lines here."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from elastream.control.clock import FakeClock
from elastream.model.cloud import HostState, HostType
from elastream.model.errors import CloudError
from elastream.spark.hosts import seats as module
from elastream.spark.hosts.seats import Seats

TYPE = HostType("executor", cores=2, slots=2, price=0.0, start=15.0)


@dataclass
class Cluster:
    """What Spark knows: executors by id, each (address, slots, busy milliseconds, leaving); and what it was asked for."""

    there: dict = field(default_factory=dict)
    totals: list = field(default_factory=list)
    killed: list = field(default_factory=list)

    context = None

    def ask(self, method, *_):
        assert method == "executors"
        return [[n, f"{host}:7", str(slots), str(ms), str(int(out))] for n, (host, slots, ms, out) in self.there.items()]

    @property
    def session(self):
        backend = SimpleNamespace(killExecutors=lambda ids, *_: self.killed.extend(ids))
        context = SimpleNamespace(
            requestTotalExecutors=lambda total, *_: self.totals.append(total), schedulerBackend=lambda: backend
        )
        jvm = SimpleNamespace(
            PythonUtils=SimpleNamespace(toScalaMap=dict, toSeq=list),
            java=SimpleNamespace(util=SimpleNamespace(HashMap=dict)),
        )
        return SimpleNamespace(sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)), _jvm=jvm)


@pytest.fixture
def cluster():
    return Cluster({"driver": ("10.0.0.1", 0, 0, False), "0": ("10.0.0.2", 2, 0, False), "1": ("10.0.0.3", 2, 0, False)})


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def seats(cluster, clock, monkeypatch):
    monkeypatch.setattr(module, "fence", lambda spark, executor: cluster.there.update(fenced=("", 0, 0, False)))
    found = Seats(cluster.session, cluster, clock.now, allowed=2)
    found.look()
    return found


def state(seats, host):
    return seats.leases[host].state


def test_executors_that_are_there_are_hosts_and_the_driver_is_none(seats):
    assert seats.usable == ("h1", "h2")
    assert dict(seats.host_of()) == {"0": "h1", "1": "h2"}
    assert seats.describe("h2") == "executor 1 (10.0.0.3)"
    assert seats.leases["h1"].type.cores == 2


def test_in_local_mode_the_driver_is_the_host(cluster, clock):
    cluster.there = {"driver": ("10.0.0.1", 4, 0, False)}
    seats = Seats(cluster.session, cluster, clock.now)
    seats.look()
    assert dict(seats.host_of()) == {"driver": "h1"}


def test_an_executor_that_was_asked_for_takes_the_name_it_was_asked_under(seats, cluster):
    seats.lease("h7", TYPE)
    assert cluster.totals == [3]
    assert state(seats, "h7") is HostState.REQUESTED
    cluster.there["2"] = ("10.0.0.4", 2, 0, False)
    seats.look()
    assert state(seats, "h7") is HostState.RUNNING
    assert seats.target("h7").executor == "2"
    assert seats.next_number == 8


def test_an_executor_nobody_asked_for_is_taken_in_under_a_new_name(seats, cluster):
    cluster.there["2"] = ("10.0.0.4", 2, 0, False)
    seats.look()
    assert seats.usable == ("h1", "h2", "h3")


def test_an_executor_that_is_being_decommissioned_takes_nothing_and_may_come_back(seats, cluster):
    cluster.there["0"] = ("10.0.0.2", 2, 0, True)
    seats.look()
    assert state(seats, "h1") is HostState.DRAINING
    assert seats.leaving("h1")
    assert seats.target("h1") is None
    cluster.there["0"] = ("10.0.0.2", 2, 0, False)
    seats.look()
    assert state(seats, "h1") is HostState.RUNNING


def test_an_executor_that_is_gone_without_being_asked_is_lost(seats, cluster):
    del cluster.there["0"]
    seats.look()
    assert state(seats, "h1") is HostState.LOST
    assert cluster.totals == []


def test_a_host_is_given_back_once_it_holds_nothing_and_two_batches_have_ended(seats, cluster):
    seats.release("h2")
    seats.step({"q": 5}, holds=lambda host: True)
    assert "fenced" not in cluster.there
    seats.step({"q": 6}, holds=lambda host: False)
    assert "fenced" in cluster.there
    seats.step({"q": 7}, holds=lambda host: False)
    assert cluster.killed == []
    seats.step({"q": 8}, holds=lambda host: False)
    assert (cluster.killed, cluster.totals) == (["1"], [1])
    del cluster.there["1"]
    seats.look()
    assert state(seats, "h2") is HostState.RELEASED


def test_a_host_whose_batches_do_not_end_is_not_waited_for(seats, cluster, clock):
    seats.release("h2")
    for _ in range(2):
        clock.advance(module.GRACE_LIMIT + 1)
        seats.step({"q": 5}, holds=lambda host: True)
    assert cluster.killed == ["1"]


def test_what_the_cluster_has_no_room_for_is_given_up_and_no_longer_asked_for(seats, cluster, clock):
    seats.lease("h3", TYPE)
    clock.advance(module.START_LIMIT + 1)
    seats.step({}, holds=lambda host: False)
    assert state(seats, "h3") is HostState.LOST
    assert cluster.totals == [3, 2]


def test_spark_may_have_as_many_executors_as_before_in_the_end(seats, cluster):
    seats.unbind()
    assert cluster.totals == []
    seats.lease("h3", TYPE)
    seats.unbind()
    seats.unbind()
    assert cluster.totals == [3, 2]


def test_where_spark_takes_what_there_is_only_giving_back_sets_a_limit(cluster, clock, seats):
    free = Seats(cluster.session, cluster, clock.now)
    free.look()
    free.lease("h3", TYPE)
    assert cluster.totals == []
    free.release("h2")
    for batch in (1, 1, 3):
        free.step({"q": batch}, holds=lambda host: False)
    assert (cluster.totals, cluster.killed) == ([2], ["1"])
    free.unbind()
    assert cluster.totals == [2, module.UNLIMITED]


def test_use_is_what_tasks_took_of_the_slots_and_unknown_at_first(seats, cluster, clock):
    assert seats.use("h1") != seats.use("h1")
    clock.advance(10)
    cluster.there["0"] = ("10.0.0.2", 2, 5_000, False)
    seats.look()
    assert seats.use("h1") == pytest.approx(0.25)


def test_letting_go_ends_every_lease_and_no_executor(seats, cluster):
    seats.close()
    assert not any(lease.active for lease in seats.leases.values())
    assert cluster.killed == []


class Provider:
    """Hosts at addresses by name; `full` lets them wait, `broken` refuses."""

    full = broken = False

    def __init__(self):
        self.there, self.ended, self.confined = [], [], {}

    def room(self, waiting, starting):
        self.waiting = tuple(waiting)
        return () if self.full else tuple(waiting)

    def lease(self, host, kind):
        if self.broken:
            raise CloudError("nothing to be had")
        self.there.append(host)

    def address(self, host):
        return f"10.1.0.{host[1:]}"

    def confine(self, host, cores):
        self.confined[host] = cores

    def terminate(self, host):
        self.ended.append(host)


@pytest.fixture
def leased(cluster, clock, seats):
    found = Seats(cluster.session, cluster, clock.now, provider=Provider())
    found.look()
    return found


def test_a_leased_host_is_the_executor_at_its_address_and_is_ended_with_it(leased, cluster):
    leased.lease("h3", TYPE)
    assert state(leased, "h3") is HostState.STARTING
    cluster.there["2"] = ("10.1.0.9", 2, 0, False)
    cluster.there["3"] = ("10.1.0.3", 2, 0, False)
    leased.look()
    assert (leased.host_of()["3"], leased.host_of()["2"]) == ("h3", "h4")
    leased.release("h3")
    for batch in (1, 3):
        leased.step({"q": batch}, holds=lambda host: False)
    assert leased._provider.ended == ["h3"]
    assert (cluster.killed, cluster.totals) == ([], [])


def test_a_leased_host_is_held_to_its_type_once_it_has_worked_off_its_first_batches(leased, cluster):
    leased.lease("h3", TYPE)
    cluster.there["3"] = ("10.1.0.3", 2, 0, False)
    leased.look()
    for batch in range(10, 14):
        leased.step({"q": batch, "idle": -1}, holds=lambda host: False)
    assert leased._provider.confined == {}
    leased.step({"q": 14, "idle": -1}, holds=lambda host: False)
    assert leased._provider.confined == {"h3": TYPE.cores}, "and executors that nobody leased are left as they are"


def test_a_host_waits_while_the_provider_has_no_room(leased):
    leased._provider.full = True
    leased.lease("h3", TYPE)
    leased.step({}, holds=lambda host: False)
    assert state(leased, "h3") is HostState.REQUESTED
    leased._provider.full = False
    leased.step({}, holds=lambda host: False)
    assert state(leased, "h3") is HostState.STARTING


def test_a_provider_hears_that_nothing_waits_any_more(leased):
    leased.lease("h3", TYPE)
    assert leased._provider.waiting == ("h3",)
    leased.step({}, holds=lambda host: False)
    assert leased._provider.waiting == (), "a pool would go on asking for a machine that nobody waits for"


def test_a_host_that_the_provider_refuses_is_lost_and_says_why_to_who_asked(leased):
    leased._provider.broken = True
    with pytest.raises(CloudError, match="nothing to be had"):
        leased.lease("h3", TYPE)
    assert state(leased, "h3") is HostState.LOST
    leased._provider.full = True
    leased.lease("h4", TYPE)
    leased._provider.full = False
    leased.step({}, holds=lambda host: False)
    assert state(leased, "h4") is HostState.LOST
