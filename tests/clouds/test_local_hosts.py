"""Which host of this machine starts when; the processes are a fake."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.clouds.local import hosts as module
from elastream.clouds.local.authentication import Secrets
from elastream.clouds.local.cluster import LocalCluster
from elastream.clouds.local.hosts import LocalHosts
from elastream.clouds.provider import HostUsage, Phase, RunState
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem
from support.fake_clock import FakeClock

SMALL = HostType("small", cores=0.5, slots=1)


@dataclass
class FakeCluster:
    """states: `alive` and `gone` by host. unable: why nothing can be spawned."""

    states: dict = field(default_factory=dict)
    spawned: list = field(default_factory=list)
    confined: dict = field(default_factory=dict)
    weights: dict = field(default_factory=dict)
    unable: str = ""
    archived: int = 0
    java_options = driver_options = ("-XX:SharedArchiveFile=classes.jsa",)

    local = SimpleNamespace(types=(SMALL,), regions=("local",), notices="")
    url, driver_address, executor_memory_mb = "spark://127.0.1.1:7077", "127.0.1.1", 667
    secrets = Secrets(None)
    confinement, link_rate = "each host is held to its cores", float("nan")
    name_problem = staticmethod(LocalCluster.name_problem)

    def status(self):
        return {name: dict(state) for name, state in self.states.items()}

    def spawn(self, host, type):
        if self.unable:
            raise EnvironmentProblem(self.unable)
        self.spawned.append(host)
        self.states[host] = {"alive": True, "gone": False}

    def terminate(self, host):
        self.states[host]["alive"] = False

    def end(self, host):
        self.states[host] = {"alive": False, "gone": True}

    def forget(self, host):
        del self.states[host]

    def address(self, host):
        return f"127.0.1.{self.spawned.index(host)}"

    def namespace(self, host):
        return None

    def failure(self, host):
        return "the worker ended with status 1"

    def confine(self, host, cores, weight=1.0):
        self.weights[host] = weight
        if cores is not None:
            self.confined[host] = cores

    def archive_classes(self):
        self.archived += 1

    def measure(self):
        return {name: HostUsage(1.0, 100.0) for name in ["somebody else's", *self.states]}


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def hosts(cluster, clock, monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {0, 1})
    return LocalHosts(cluster, 1, 3, clock.now)


def phases(hosts):
    return {name: status.phase.value for name, status in hosts.hosts().items()}


def test_two_hosts_start_at_a_time_for_each_core_in_request_order(hosts, cluster, monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {0})
    hosts.lease({"h1": SMALL, "h2": SMALL, "h3": SMALL})
    assert phases(hosts) == {"h1": "up", "h2": "up", "h3": "requested"}
    hosts.report(RunState(ready=frozenset({"h2"})))
    assert phases(hosts) == {"h1": "up", "h2": "up", "h3": "up"}
    assert cluster.spawned == ["h1", "h2", "h3"]


def test_a_host_that_never_reports_holds_the_next_one_up_for_a_while_only(hosts, clock, monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {0})
    hosts.lease({"h1": SMALL, "h2": SMALL, "h3": SMALL})
    clock.advance(module.START_TIMEOUT_S - 1)
    assert phases(hosts)["h3"] == "requested"
    clock.advance(1)
    assert phases(hosts)["h3"] == "up"


def test_starting_hosts_weigh_less_than_working_ones(hosts, cluster, clock):
    hosts.lease({"h1": SMALL, "h2": SMALL, "h3": SMALL})
    assert 1.0 > cluster.weights["h1"] > cluster.weights["h2"] == cluster.weights["h3"]
    first = cluster.weights["h1"]
    hosts.report(RunState(ready=frozenset({"h1"})))
    assert (cluster.weights["h1"], cluster.weights["h2"]) == (1.0, first)
    clock.advance(module.START_TIMEOUT_S)
    hosts.hosts()
    assert cluster.weights == {"h1": 1.0, "h2": 1.0, "h3": 1.0}


def test_a_host_that_ends_takes_room_until_nothing_is_left_of_it(hosts, cluster, monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: range(16))
    hosts.lease(dict.fromkeys(["h1", "h2", "h3", "h4"], SMALL))
    hosts.release(["h1"])
    assert phases(hosts) == {"h1": "ending", "h2": "up", "h3": "up", "h4": "requested"}
    cluster.end("h1")
    assert phases(hosts) == {"h2": "up", "h3": "up", "h4": "up"}


def test_host_that_could_not_start_is_gone_with_the_reason(hosts, cluster):
    cluster.unable = "the disk is full"
    hosts.lease({"h1": SMALL})
    assert hosts.hosts()["h1"].phase is Phase.GONE
    assert hosts.hosts()["h1"].reason == "it could not be started: the disk is full"
    cluster.unable = ""
    hosts.release(["h1"])
    hosts.lease({"h1": SMALL})
    assert phases(hosts) == {"h1": "up"}


def test_a_settled_host_is_held_to_its_cores_once(hosts, cluster):
    hosts.lease({"h1": SMALL})
    hosts.report(RunState(ready=frozenset({"h1"})))
    assert cluster.confined == {}
    hosts.report(RunState(ready=frozenset({"h1"}), settled=frozenset({"h1"})))
    assert cluster.confined == {"h1": 0.5}
    assert cluster.archived == 1
    cluster.confined.clear()
    hosts.report(RunState(ready=frozenset({"h1"}), settled=frozenset({"h1"})))
    assert cluster.confined == {}


def test_a_type_of_another_region_is_refused(hosts):
    with pytest.raises(CloudError, match="no host of this machine is in the region 'moon'; regions: local"):
        hosts.lease({"h1": HostType("far", cores=1, region="moon")})
    assert phases(hosts) == {}


EVENTS = st.tuples(st.sampled_from(["lease", "release", "ready", "die", "end"]), st.integers(1, 6))


@given(st.lists(EVENTS, max_size=60))
def test_hosts_stay_within_max_hosts_and_starts_within_the_cores(story):
    cluster, clock = FakeCluster(), FakeClock()
    hosts = LocalHosts(cluster, 1, 3, clock.now)
    ready: set[str] = set()
    for event, number in story:
        name = f"h{number}"
        state = cluster.states.get(name)
        if event == "lease":
            hosts.lease({name: SMALL})
        elif event == "release":
            hosts.release([name])
        elif event == "ready" and state is not None and state["alive"]:
            ready.add(name)
            hosts.report(RunState(ready=frozenset(ready)))
        elif event == "die" and state is not None:
            state["alive"] = False
        elif event == "end" and state is not None and not state["alive"]:
            cluster.end(name)
        listed = hosts.hosts()
        ready &= set(listed)
        assert sum(not each["gone"] for each in cluster.states.values()) <= 3
        starting = [n for n, status in listed.items() if status.phase is Phase.UP and n not in ready]
        assert len(starting) <= module.STARTS_PER_CORE * len(module.os.sched_getaffinity(0))
        assert set(cluster.states) <= set(listed)
