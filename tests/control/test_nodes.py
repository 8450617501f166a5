"""Durable managers: killed at any step, with a network that loses, doubles and delays, nothing that must never be happens.

The world of `tests/planning/hierarchy/test_protocol.py`, with managers that keep journals on disk and can be killed before,
during and after each write and each call of their provider. Besides, what single nodes do.
"""

import math
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastream.control.nodes import ApplicationNode, HostStatus, InfrastructureNode, RegionNode
from elastream.control.state_log import StateLog
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError, InputError
from elastream.planning.hierarchy.applications import ApplicationRules
from elastream.planning.hierarchy.infrastructure import InfrastructureRules, Stance
from elastream.planning.hierarchy.messages import Holding, Message, RegionOrder, RegionReport, View
from elastream.planning.hierarchy.regions import RegionRules

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
        return [
            HostStatus(host, "small", up, self.cpu.get(host, math.nan), self.replicas.get(host, 0))
            for host, up in self.leased.items()
            if host not in self.dead
        ]

    def lease(self, host, kind):
        self._perhaps("before")
        assert host not in self.ever, f"{host} is leased twice"
        self.leased[host] = False
        self.ever.append(host)
        self._perhaps("after")

    def release(self, host):
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
            self.nodes[name] = RegionNode(name, REGION, [SMALL], self.clouds[name], log)
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

    @rule(name=st.sampled_from(APPLICATIONS), critical=st.booleans())
    def an_application_says_what_it_holds(self, name: str, critical: bool) -> None:
        occupied = {host for who, host in self.running if who == name}
        said = self.do(name, lambda node: node.holding(self.now, occupied, critical))
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

    @rule()
    def all_is_well_for_a_round(self) -> None:
        """Everybody reports, hears and acts: so that runs get somewhere."""
        for name in (*REGIONS, *APPLICATIONS, *REGIONS, *APPLICATIONS):
            kind = self.a_region_reports if name in REGIONS else self.an_application_says_what_it_holds
            count = len(self.network)
            kind(name) if name in REGIONS else kind(name, False)
            for message in self.network[count:]:
                answer = self.do("manager", lambda node, message=message: node.hear(message))
                if answer and name in REGIONS:
                    self.do(name, lambda node, answer=answer: node.hear(answer, self.now))
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


DurableManagers.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestDurableManagers = DurableManagers.TestCase
