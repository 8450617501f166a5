"""Durable managers: killed at any step, with a network that loses, doubles and delays, nothing that must never be happens.

The world of `tests/planning/hierarchy/test_protocol.py`, with managers that keep journals on disk and can be killed before,
during and after each write and each call of their provider. Besides, what single nodes do.
"""

import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastream.clouds.provider import HostStatus, Measured, Phase
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError, InputError
from elastream.planning.managers.applications import Application, ApplicationRules
from elastream.planning.managers.infrastructure import InfrastructureRules
from elastream.planning.managers.messages import Holding, Message, RegionOrder, RegionReport, View
from elastream.planning.managers.regions import Region, RegionRules
from elastream.services.nodes import ApplicationNode, InfrastructureNode, RegionNode, RegionState
from elastream.services.state_log import StateLog
from properties import examples

REGIONS, APPLICATIONS = ("east", "west"), ("a", "b")
SMALL = HostType("small", cores=1.0, slots=1)
INFRASTRUCTURE = InfrastructureRules(patience=50.0, max_hosts=8, min_hosts=0)
APPLICATION = ApplicationRules(settle=20.0)
REGION = RegionRules(spare=2, low=0.1, settle=10.0)


class Killed(BaseException):
    """The process is no more."""


class MortalLog(StateLog):
    """A journal whose process can be killed before a line is written, in the middle of it, or when it is on disk."""

    fate = ""

    def commit(self, tables):
        fate, self.fate = self.fate, ""
        if fate == "before":
            raise Killed
        path = self._lines.path if self._lines else None
        size = path.stat().st_size if path else 0
        super().commit(tables)
        if fate == "torn" and path and (grown := path.stat().st_size) > size:
            with path.open("r+b") as file:
                file.truncate((size + grown) // 2)
        if fate:
            raise Killed


class Cloud:
    """The hosts of a region as they really are. `world` is asked whether a release may be."""

    def __init__(self, may_go=lambda host: None) -> None:
        self.leased: dict[str, bool] = {}
        self.dead: set[str] = set()
        self.ever: list[str] = []
        self.replicas: dict[str, int] = {}
        self.cpu: dict[str, float] = {}
        self.may_go = may_go
        self.fate = ""

    def hosts(self):
        return {
            host: HostStatus("small", Phase.UP if up else Phase.STARTING)
            for host, up in self.leased.items()
            if host not in self.dead
        }

    def measure(self):
        return {
            host: Measured(cpu=self.cpu.get(host, math.nan), replicas=self.replicas.get(host, 0)) for host in self.leased
        }

    def lease(self, hosts):
        (host,) = hosts
        self._perhaps("before")
        assert host not in self.ever, f"{host} is leased twice"
        self.leased[host] = False
        self.ever.append(host)
        self._perhaps("after")

    def release(self, hosts):
        (host,) = hosts
        self._perhaps("before")
        self.may_go(host)
        self.leased.pop(host, None)
        self._perhaps("after")

    def _perhaps(self, when):
        if self.fate == when:
            self.fate = ""
            raise Killed


class DurableManagers(RuleBasedStateMachine):
    """Two regions, two applications, an infrastructure manager; messages and answers under way."""

    @initialize()
    def begin(self) -> None:
        # Where there is one, a file system in memory: what is tested is what is written, not how long a disk takes.
        shm = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None))
        self.now = 0.0
        self.clouds = {name: Cloud(self.check_release) for name in REGIONS}
        self.spare = dict.fromkeys(REGIONS, 3)
        self.nodes: dict[str, InfrastructureNode | RegionNode | ApplicationNode] = {}
        for name in ("manager", *REGIONS, *APPLICATIONS):
            self.start(name)
        self.running: set[tuple[str, str]] = set()
        self.pending: dict[tuple[str, str], float] = {}
        self.network: list[Message] = []
        for _ in range(3):
            self.all_is_well_for_a_round()
            self.hosts_come_up()
        for name in APPLICATIONS:
            for host in self.nodes[name].open[:1]:
                assert self.nodes[name].place(host, self.now)
                self.running.add((name, host))
        assert self.running, "nothing to lose"

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for node in self.nodes.values():
                node._log.close()
            shutil.rmtree(self.folder)

    def start(self, name: str) -> None:
        log = MortalLog(self.folder / name, name)
        if name == "manager":
            self.nodes[name] = InfrastructureNode(INFRASTRUCTURE, log)
        elif name in REGIONS:
            rules = replace(REGION, spare=self.spare[name])
            self.nodes[name] = RegionNode(name, rules, [SMALL], self.clouds[name], log)
        else:
            self.nodes[name] = ApplicationNode(name, APPLICATION, log)

    def do(self, name: str, what):
        """What a process does; None where it was killed meanwhile, and has started again."""
        try:
            return what(self.nodes[name])
        except Killed:
            self.nodes[name]._log.close()
            self.start(name)
            return None

    # -- processes die ---------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(("manager", *REGIONS, *APPLICATIONS)), fate=st.sampled_from(("before", "torn", "after")))
    def will_be_killed_at_its_next_write(self, name: str, fate: str) -> None:
        self.nodes[name]._log.fate = fate

    @rule(name=st.sampled_from(REGIONS), fate=st.sampled_from(("before", "after")))
    def will_be_killed_at_its_next_lease_or_release(self, name: str, fate: str) -> None:
        self.clouds[name].fate = fate

    @rule(name=st.sampled_from(("manager", *REGIONS, *APPLICATIONS)))
    def restarts_and_knows_what_it_knew(self, name: str) -> None:
        before = self.nodes[name]
        before._log.close()
        self.start(name)
        after = self.nodes[name]
        known = "application" if name in APPLICATIONS else "state"
        mine, found = getattr(before, known), getattr(after, known)
        assert without_order(found) == without_order(mine)

    # -- what managers say and hear --------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(REGIONS))
    def a_region_reports(self, name: str) -> None:
        said = self.do(name, lambda node: node.report(self.now))
        self.network += [said] if said else []

    @rule(name=st.sampled_from(REGIONS))
    def a_region_acts(self, name: str) -> None:
        self.do(name, lambda node: node.act())

    @rule(name=st.sampled_from(APPLICATIONS), critical=st.booleans(), spare=st.integers(0, 3))
    def an_application_says_what_it_holds(self, name: str, critical: bool, spare: int = 1) -> None:
        occupied = {host for who, host in self.running if who == name}
        said = self.do(name, lambda node: node.holding(self.now, occupied, critical, (("east", spare),)))
        self.network += [said] if said else []

    @precondition(lambda self: self.network)
    @rule(data=st.data(), stays=st.booleans())
    def a_message_arrives(self, data: st.DataObject, stays: bool) -> None:
        """The newest as likely as all others; it may come again."""
        message = data.draw(st.just(self.network[-1]) | st.sampled_from(self.network))
        if not stays:
            self.network.remove(message)
        match message:
            case RegionReport() | Holding():
                answer = self.do("manager", lambda node: node.hear(message))
                self.network += [answer] if answer else []
            case RegionOrder():
                self.do(message.region, lambda node: node.hear(message, self.now))
            case View():
                self.do(message.application, lambda node: node.hear(message))

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def a_message_is_lost(self, data: st.DataObject) -> None:
        self.network.remove(data.draw(st.sampled_from(self.network)))

    @rule()
    def the_infrastructure_manager_decides(self) -> None:
        self.do("manager", lambda node: node.round(self.now))

    @rule(name=st.sampled_from(REGIONS), spare=st.integers(0, 3))
    def a_region_is_to_keep_more_or_less_spare(self, name: str, spare: int) -> None:
        """A restart with another document; so that it asks for hosts, for releases and for drains."""
        self.spare[name] = spare
        self.nodes[name].rules = replace(REGION, spare=spare)

    @rule(acts=st.booleans(), critical=st.booleans())
    def all_is_well_for_a_round(self, acts: bool = True, critical: bool = False) -> None:
        """Everybody reports and hears: so that runs get somewhere."""
        for name in (*REGIONS, *APPLICATIONS, *REGIONS, *APPLICATIONS):
            kind = self.a_region_reports if name in REGIONS else self.an_application_says_what_it_holds
            count = len(self.network)
            kind(name) if name in REGIONS else kind(name, critical)
            for message in self.network[count:]:
                answer = self.do("manager", lambda node, message=message: node.hear(message))
                if answer and name in REGIONS:
                    self.do(name, lambda node, answer=answer: node.hear(answer, self.now))
                    if acts:
                        self.a_region_acts(name)
                elif answer:
                    self.do(name, lambda node, answer=answer: node.hear(answer))
            self.the_infrastructure_manager_decides()

    # -- what the world does ---------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 15.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.pending = {who: at for who, at in self.pending.items() if self.now - at < APPLICATION.settle}

    @rule()
    def hosts_come_up(self) -> None:
        for cloud in self.clouds.values():
            cloud.leased = dict.fromkeys(cloud.leased, True)

    @rule(name=st.sampled_from(REGIONS), data=st.data())
    def a_host_dies(self, name: str, data: st.DataObject) -> None:
        alive = sorted(set(self.clouds[name].leased) - self.clouds[name].dead)
        if alive:
            host = data.draw(st.sampled_from(alive))
            self.clouds[name].dead.add(host)
            self.running = {each for each in self.running if each[1] != host}
            self.pending = {each: at for each, at in self.pending.items() if each[1] != host}

    @rule(name=st.sampled_from(APPLICATIONS), data=st.data())
    def an_application_places_a_replica(self, name: str, data: st.DataObject) -> None:
        if open_ := sorted(set(self.nodes[name].open) - self.dead):
            host = data.draw(st.sampled_from(open_))
            if self.do(name, lambda node: node.place(host, self.now)):
                self.pending[name, host] = self.now

    @rule()
    def placements_show(self) -> None:
        self.running |= set(self.pending)
        self.pending.clear()

    @rule(data=st.data(), busy=st.booleans())
    def replicas_come_to_rest(self, data: st.DataObject, busy: bool) -> None:
        """Providers see what runs, and how used it is; some replica may be gone."""
        if self.running and data.draw(st.booleans()):
            self.running.remove(data.draw(st.sampled_from(sorted(self.running))))
        for cloud in self.clouds.values():
            cloud.replicas = {host: 1 for _, host in self.running if host in cloud.leased}
            cloud.cpu = dict.fromkeys(cloud.leased, 0.5 if busy else 0.05)

    @property
    def dead(self) -> set[str]:
        return {host for cloud in self.clouds.values() for host in cloud.dead}

    def check_release(self, host: str) -> None:
        if host in self.dead:
            return
        assert host not in {h for _, h in self.running}, f"{host} is released under a replica"
        assert host not in {h for _, h in self.pending}, f"{host} is released under a granted placement"
        for name in APPLICATIONS:
            assert host not in self.nodes[name].application.hosts, f"{host} is released, and {name} holds it"

    # -- what always holds -----------------------------------------------------------------------------------------------

    @invariant()
    def no_two_applications_hold_one_host(self) -> None:
        held = [host for name in APPLICATIONS for host in self.nodes[name].application.hosts]
        assert len(held) == len(set(held)), held

    @invariant()
    def no_two_regions_have_one_host(self) -> None:
        had = [host for name in REGIONS for host in self.nodes[name].state.region.hosts]
        assert len(had) == len(set(had)), had

    @invariant()
    def who_holds_a_host_is_its_owner_on_record_and_it_is_leased(self) -> None:
        leased = {host for cloud in self.clouds.values() for host in cloud.leased}
        for name in APPLICATIONS:
            for host in set(self.nodes[name].application.hosts) - self.dead:
                record = self.nodes["manager"].state.hosts.get(host)
                if record is not None:
                    assert record.owner == name, (host, record, name)
                    assert host in leased, host

    @invariant()
    def every_replica_stands_on_a_leased_host(self) -> None:
        standing = {host for _, host in self.running} | {host for _, host in self.pending}
        assert standing <= {host for cloud in self.clouds.values() for host in cloud.leased}, standing


def without_order(state):
    """A node's state with tuples of hosts as sets: tables keep no order."""
    fields = {name: getattr(state, name) for name in state.__dataclass_fields__}
    return {
        name: frozenset(value)
        if isinstance(value, tuple)
        else without_order(value)
        if name == "region"
        else {k: without_order(v) if name in ("regions", "applications") else v for k, v in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in fields.items()
    }


DurableManagers.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=50)
TestDurableManagers = DurableManagers.TestCase


names = st.sampled_from(["h1", "h2", "h3", "h4"])
some, counts, times = st.lists(names, unique=True).map(tuple), st.integers(0, 99), st.floats(0, 1e9)
applications_ = st.builds(
    Application, st.just("a"), counts, counts, some, some.map(frozenset), some.map(frozenset), times | st.just(math.inf),
    times, st.dictionaries(names, times),
)  # fmt: skip
region_states = st.builds(
    RegionState,
    st.builds(Region, st.just("east"), counts, counts, st.dictionaries(names, times)),
    st.dictionaries(names, st.just("small")), some, names | st.just(""), some, some.map(frozenset),
)  # fmt: skip


@given(applications_, region_states)
def test_all_that_a_node_remembers_is_found_again(application: Application, region: RegionState) -> None:
    folder = Path(tempfile.mkdtemp())
    for kind, state in ((ApplicationNode, application), (RegionNode, region)):
        for start in (True, False):
            log = StateLog(folder / kind.__name__, "m")
            if kind is ApplicationNode:
                node = ApplicationNode("a", APPLICATION, log)
                found = node.application
            else:
                node = RegionNode("east", REGION, [SMALL], Cloud(), log)
                found = node.state
            if start:
                (node.become if kind is ApplicationNode else node._become)(state)
            else:
                assert without_order(found) == without_order(state)
            log.close()
    shutil.rmtree(folder)


# -- single nodes ----------------------------------------------------------------------------------------------------------


def region(cloud, log=None, rules=REGION) -> RegionNode:
    return RegionNode("east", rules, [SMALL, HostType("big", cores=4.0, slots=4)], cloud, log or StateLog(None, "east"))


def order(term: int, *hosts: str, kind: str = "small", **about) -> RegionOrder:
    return RegionOrder("east", term, tuple((host, kind) for host in hosts), **about)


def test_a_region_asks_for_the_smallest_hosts_that_make_its_spare_capacity_good():
    assert region(Cloud()).report(0.0).add == ("small", "small")


def test_hosts_on_order_count_as_spare_before_they_are_leased_and_hosts_to_be_left_do_not():
    node = region(Cloud())
    node.hear(order(1, "h1", "h2"), 0.0)
    assert node.report(1.0).add == ()
    node.hear(order(1, "h1", "h2", leaving=("h2",)), 2.0)
    assert node.report(3.0).add == ("small",)


def test_a_region_would_release_empty_hosts_and_drain_hardly_used_ones():
    cloud = Cloud()
    node = region(cloud, rules=RegionRules(spare=0, low=0.1))
    node.hear(order(1, "h1", "h2", "h3"), 0.0)
    node.act()
    cloud.leased = dict.fromkeys(cloud.leased, True)
    cloud.replicas, cloud.cpu = {"h1": 1, "h2": 1}, {"h1": 0.5, "h2": 0.05, "h3": 0.0}
    said = node.report(1.0)
    assert (said.up, said.release, said.drain, said.idlest) == (("h1", "h2", "h3"), ("h3",), (), "h2")


class Failing(Cloud):
    """Fails once at each thing."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[str] = set()

    def lease(self, hosts):
        (host,) = hosts
        if host not in self.failed:
            self.failed.add(host)
            raise CloudError("the quota is used up")
        super().lease(hosts)

    def release(self, hosts):
        (host,) = hosts
        if f"-{host}" not in self.failed:
            self.failed.add(f"-{host}")
            raise CloudError("no route to the provider")
        super().release(hosts)


def test_what_fails_is_told_and_tried_again():
    cloud = Failing()
    node = region(cloud)
    node.hear(order(1, "h1"), 0.0)
    assert node.act() == ["h1 cannot be leased: the quota is used up"]
    assert (node.act(), set(cloud.leased)) == ([], {"h1"})
    node.hear(order(2), 1.0)
    assert node.act() == ["h1 cannot be released: no route to the provider"]
    assert (node.act(), set(cloud.leased)) == ([], set())


def test_a_type_that_is_not_known_here_is_told():
    node = region(Cloud())
    node.hear(order(1, "h1", kind="huge"), 0.0)
    assert node.act() == ["h1 cannot be leased: there is no host type 'huge' here"]


def test_a_lease_that_a_crash_cut_short_is_not_tried_again_and_counts_as_lost_after_a_while(tmp_path):
    cloud = Cloud()
    cloud.fate = "before"
    node = region(cloud, StateLog(tmp_path / "j", "east"))
    node.hear(order(1, "h1"), 0.0)
    with pytest.raises(Killed):
        node.act()
    node._log.close()
    node = region(cloud, StateLog(tmp_path / "j", "east"))
    assert (node.act(), cloud.leased) == ([], {})
    assert node.report(1.0).coming == ("h1",)
    assert node.report(20.0).coming == ()


def test_a_region_that_lost_its_journal_is_heard_again_and_leases_nothing_twice():
    manager = InfrastructureNode(INFRASTRUCTURE, StateLog(None, "manager"))
    cloud = Cloud()
    node = region(cloud)
    for now in range(3):
        node.hear(manager.hear(node.report(now)), now)
        node.act()
        manager.round(now)
    assert len(cloud.ever) == 2
    amnesiac = RegionNode("east", REGION, [SMALL], IdempotentCloud(cloud), StateLog(None, "east"))
    assert amnesiac.strays() == ("h1", "h2")
    for now in range(3, 6):
        amnesiac.hear(manager.hear(amnesiac.report(now)), now)
        amnesiac.act()
        manager.round(now)
    assert set(amnesiac.state.region.hosts) == set(cloud.leased) == {"h1", "h2"}
    assert amnesiac.strays() == ()
    assert manager.state.regions["east"].number == amnesiac.state.region.number


class IdempotentCloud(Cloud):
    """A provider as the protocol wants it: a name that is leased is not leased again."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__()
        self.leased, self.ever = cloud.leased, cloud.ever

    def lease(self, hosts):
        if not hosts.keys() <= self.leased.keys():
            super().lease(hosts)


def test_an_infrastructure_manager_that_lost_its_journal_says_so_and_gives_no_orders():
    fresh = InfrastructureNode(INFRASTRUCTURE, StateLog(None, "manager"))
    with pytest.raises(InputError, match="region east has seen term 3, and here only 0 were given"):
        fresh.hear(RegionReport("east", 9, 3, ("h1",)))
    with pytest.raises(InputError, match="application a has seen term 2"):
        fresh.hear(Holding("a", 9, 2, ("h1",)))
    fresh.round(0.0)
    assert fresh.state.hosts == {}


def test_whoever_is_not_on_the_list_is_refused():
    node = InfrastructureNode(INFRASTRUCTURE, StateLog(None, "manager"), REGIONS, APPLICATIONS)
    with pytest.raises(InputError, match=r"there is no application 'c' here .there are: a, b."):
        node.hear(Holding("c", 1, 0, ()))


def test_nothing_is_placed_on_a_host_that_is_to_be_left_and_a_placement_keeps_its_host():
    node = ApplicationNode("a", APPLICATION, StateLog(None, "a"))
    node.hear(View("a", 1, ("h1", "h2")))
    assert node.place("h1", 0.0)
    assert not node.place("h9", 0.0)
    node.hear(View("a", 2, ("h1", "h2"), leave=("h1", "h2")))
    assert (node.open, node.place("h2", 1.0)) == ((), False)
    assert node.holding(2.0, (), False).hosts == ("h1",), "what was granted lately counts as in use"
    assert node.holding(30.0, (), False).hosts == ()


def test_refusals_reach_the_region_with_their_reason():
    node = InfrastructureNode(InfrastructureRules(max_hosts=0), StateLog(None, "manager"))
    node.hear(RegionReport("east", 1, 0, (), add=("small",)))
    node.round(0.0)
    assert node.hear(RegionReport("east", 2, 0, ())).refused == "there are 0 hosts, as many as may be"
    node.round(1.0)
    assert node.hear(RegionReport("east", 3, 0, ())).refused == ""
