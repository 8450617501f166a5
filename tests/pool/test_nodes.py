"""Durable managers: killed at any step, with a network that loses, doubles and delays, nothing that must never be happens.

The world of `tests/planning/sharing/test_protocol.py`, with managers that keep journals on disk and can be killed before,
during and after each write and each call of their provider. An application has no journal: what it runs ends with it, and
it joins anew. Besides, what single nodes do.
"""

import errno
import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastream.clouds.provider import HostStatus, HostUsage, Phase
from elastream.core.hosts import HostType
from elastream.errors import CloudError, ElastreamError, InputError
from elastream.policies.e2df.applications import Application, ApplicationRules, answer
from elastream.policies.e2df.regions import RegionRules
from elastream.pool.arbiter import ArbiterNode, Entitlement, UnknownMember
from elastream.pool.region import RegionNode, RegionState
from elastream.pool.state_log import StateLog, steady_clock
from elastream.sharing import holder
from elastream.sharing.messages import Claim, Offer, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Tenure
from support.property_examples import examples

REGIONS, APPLICATIONS = ("east", "west"), ("a", "b")
SMALL = HostType("small", cores=1.0, slots=1)
KINDS = {region: HostType(f"small-{region}", cores=1.0, slots=1, region=region) for region in REGIONS}
OFFER = Offer("demo", tuple(KINDS.values()), 8)
RULES = ArbiterRules(patience=50.0, max_hosts=8, min_hosts=0)
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
        self.kinds: dict[str, str] = {}
        self.dead: set[str] = set()
        self.ever: list[str] = []
        self.replicas: dict[str, int] = {}
        self.cpu: dict[str, float] = {}
        self.may_go = may_go
        self.fate = ""

    def hosts(self):
        return {
            host: HostStatus(self.kinds.get(host, "small"), Phase.UP if up else Phase.STARTING)
            for host, up in self.leased.items()
            if host not in self.dead
        }

    def measure(self):
        return {
            host: HostUsage(cpu=self.cpu.get(host, math.nan), replicas=self.replicas.get(host, 0)) for host in self.leased
        }

    def lease(self, hosts):
        ((host, kind),) = hosts.items()
        self._perhaps("before")
        assert host not in self.ever, f"{host} is leased twice"
        self.leased[host] = False
        self.kinds[host] = kind.name
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


class App:
    """An application's process: its hosts, and the key of its membership; nothing of it outlives it."""

    def __init__(self, name: str) -> None:
        self.application = Application(name)
        self.key = ""

    def place(self, host: str, now: float) -> None:
        """Something is to run there: until it is seen, the host counts as in use."""
        self.application = replace(self.application, granted={**self.application.granted, host: now})

    def claim(self, now: float, occupied: set[str], critical: bool, asks: tuple[str, ...]) -> Claim:
        """What the application manager answers, with requests."""
        mine = self.application
        kept, said = answer(APPLICATION, mine, now, frozenset(occupied), critical, (("east", 1),))
        self.application = kept
        return replace(said, asks=asks)


class DurableManagers(RuleBasedStateMachine):
    """Two regions, two applications, an arbiter; messages and answers under way, a claim with its key."""

    @initialize()
    def begin(self) -> None:
        # Where there is one, a file system in memory: what is tested is what is written, not how long a disk takes.
        shm = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None))
        self.now = 0.0
        self.clouds = {name: Cloud(self.check_release) for name in REGIONS}
        self.spare = dict.fromkeys(REGIONS, 3)
        self.nodes: dict[str, ArbiterNode | RegionNode] = {}
        self.apps: dict[str, App] = {}
        self.running: set[tuple[str, str]] = set()
        self.pending: dict[tuple[str, str], float] = {}
        self.network: list[RegionReport | RegionOrder | View | tuple[Claim, str]] = []
        for name in ("manager", *REGIONS):
            self.start(name)
        for name in APPLICATIONS:
            self.an_application_starts(name)
        for _ in range(3):
            self.all_is_well_for_a_round()
            self.hosts_come_up()
        for name in APPLICATIONS:
            for host in self.apps[name].application.open[:1]:
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
            self.nodes[name] = ArbiterNode(OFFER, RULES, log, lambda: self.now, regions=REGIONS, period=1e9)
        else:
            rules = replace(REGION, spare=self.spare[name])
            self.nodes[name] = RegionNode(name, rules, [KINDS[name]], self.clouds[name], log)

    def do(self, name: str, what):
        """What a process does; None where it was killed meanwhile, and has started again."""
        try:
            return what(self.nodes[name])
        except Killed:
            self.nodes[name]._log.close()
            self.start(name)
            return None
        except UnknownMember:
            return None  # the application will join anew, which is a rule of its own

    # -- processes die ---------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(("manager", *REGIONS)), fate=st.sampled_from(("before", "torn", "after")))
    def will_be_killed_at_its_next_write(self, name: str, fate: str) -> None:
        self.nodes[name]._log.fate = fate

    @rule(name=st.sampled_from(REGIONS), fate=st.sampled_from(("before", "after")))
    def will_be_killed_at_its_next_lease_or_release(self, name: str, fate: str) -> None:
        self.clouds[name].fate = fate

    @rule(name=st.sampled_from(("manager", *REGIONS)))
    def restarts_and_knows_what_it_knew(self, name: str) -> None:
        before = self.nodes[name]
        before._log.close()
        self.start(name)
        after = self.nodes[name]
        assert remembered(after.state) == remembered(before.state)

    # -- what managers say and hear --------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(REGIONS))
    def a_region_reports(self, name: str) -> None:
        said = self.do(name, lambda node: node.report(self.now))
        self.network += [said] if said else []

    @rule(name=st.sampled_from(REGIONS))
    def a_region_acts(self, name: str) -> None:
        self.do(name, lambda node: node.act())

    @rule(name=st.sampled_from(APPLICATIONS), critical=st.booleans(), asks=st.lists(st.sampled_from(REGIONS), max_size=2))
    def an_application_claims(self, name: str, critical: bool, asks: list[str]) -> None:
        app = self.apps[name]
        occupied = {host for who, host in self.running if who == name}
        claim = app.claim(self.now, occupied, critical, tuple(KINDS[region].name for region in asks))
        self.network.append((claim, app.key))

    @rule(name=st.sampled_from(APPLICATIONS), data=st.data())
    def an_application_gives_hosts_back_unasked(self, name: str, data: st.DataObject) -> None:
        app = self.apps[name]
        used = {host for who, host in {*self.running, *self.pending} if who == name} | set(app.application.granted)
        if idle := sorted(set(app.application.hosts) - used):
            app.application, claim = holder.claim(app.application, {data.draw(st.sampled_from(idle))})
            self.network.append((claim, app.key))

    @rule(name=st.sampled_from(APPLICATIONS))
    def an_application_is_killed_and_starts_again_when_it_counts_as_dead(self, name: str) -> None:
        """What it ran is gone with it. Its silence is stood in for by its leaving, so that time need not pass."""
        self.running = {each for each in self.running if each[0] != name}
        self.pending = {each: at for each, at in self.pending.items() if each[0] != name}
        key = self.nodes["manager"]._keys.get(name, "")
        self.do("manager", lambda node: node.leave(name, key))
        self.an_application_starts(name)

    def an_application_starts(self, name: str) -> None:
        """It joins, with an empty memory; answers to the one before it reach nobody."""
        self.apps[name] = App(name)
        self.network = [m for m in self.network if not (isinstance(m, View) and m.application == name)]
        while not self.apps[name].key:
            manager = self.nodes["manager"]
            if name in manager.state.applications:  # killed before it could answer
                self.do("manager", lambda node: node.leave(name, node._keys[name]))
            self.apps[name].key = self.do("manager", lambda node: node.join(name, Entitlement())) or ""

    @precondition(lambda self: self.network)
    @rule(data=st.data(), stays=st.booleans())
    def a_message_arrives(self, data: st.DataObject, stays: bool) -> None:
        """The newest as likely as all others; it may come again."""
        message = data.draw(st.just(self.network[-1]) | st.sampled_from(self.network))
        if not stays:
            self.network.remove(message)
        match message:
            case RegionReport():
                answer = self.do("manager", lambda node: node.report(message))
                self.network += [answer] if answer else []
            case Claim(), str():
                answer = self.do("manager", lambda node: node.claim(*message))
                self.network += [answer] if answer else []
            case RegionOrder():
                self.do(message.region, lambda node: node.receive(message, self.now))
            case View():
                app = self.apps[message.application]
                app.application = holder.receive(app.application, message)

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def a_message_is_lost(self, data: st.DataObject) -> None:
        self.network.remove(data.draw(st.sampled_from(self.network)))

    @rule()
    def the_arbiter_decides(self) -> None:
        self.do("manager", lambda node: node.round())

    @rule(name=st.sampled_from(REGIONS), spare=st.integers(0, 3))
    def a_region_is_to_keep_more_or_less_spare(self, name: str, spare: int) -> None:
        """A restart with another document; so that it asks for hosts, for releases and for drains."""
        self.spare[name] = spare
        self.nodes[name].rules = replace(REGION, spare=spare)

    @rule(acts=st.booleans(), critical=st.booleans())
    def all_is_well_for_a_round(self, acts: bool = True, critical: bool = False) -> None:
        """Everybody reports and hears: so that runs get somewhere."""
        for name in (*REGIONS, *APPLICATIONS, *REGIONS, *APPLICATIONS):
            count = len(self.network)
            if name in REGIONS:
                self.a_region_reports(name)
            else:
                self.an_application_claims(name, critical, REGIONS[:1] if not self.apps[name].application.hosts else [])
            for message in self.network[count:]:
                if name in REGIONS:
                    order = self.do("manager", lambda node, message=message: node.report(message))
                    if order:
                        self.do(name, lambda node, order=order: node.receive(order, self.now))
                    if acts:
                        self.a_region_acts(name)
                elif view := self.do("manager", lambda node, message=message: node.claim(*message)):
                    self.apps[name].application = holder.receive(self.apps[name].application, view)
            self.the_arbiter_decides()

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
        if open_ := sorted(set(self.apps[name].application.open) - self.dead):
            host = data.draw(st.sampled_from(open_))
            self.apps[name].place(host, self.now)
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
            assert host not in self.apps[name].application.hosts, f"{host} is released, and {name} holds it"

    # -- what always holds -----------------------------------------------------------------------------------------------

    @invariant()
    def no_two_applications_hold_one_host(self) -> None:
        held = [host for name in APPLICATIONS for host in self.apps[name].application.hosts]
        assert len(held) == len(set(held)), held

    @invariant()
    def no_two_regions_have_one_host(self) -> None:
        had = [host for name in REGIONS for host in self.nodes[name].state.region.hosts]
        assert len(had) == len(set(had)), had

    @invariant()
    def who_holds_a_host_is_its_owner_on_record_and_it_is_leased(self) -> None:
        leased = {host for cloud in self.clouds.values() for host in cloud.leased}
        for name in APPLICATIONS:
            for host in set(self.apps[name].application.hosts) - self.dead:
                record = self.nodes["manager"].state.hosts.get(host)
                if record is not None:
                    assert record.owner == name, (host, record, name)
                    assert host in leased, host

    @invariant()
    def every_replica_stands_on_a_leased_host(self) -> None:
        standing = {host for _, host in self.running} | {host for _, host in self.pending}
        assert standing <= {host for cloud in self.clouds.values() for host in cloud.leased}, standing


def remembered(state):
    """What must outlive a node's process, with hosts as sets: tables keep no order. What a member said it says again."""
    if isinstance(state, RegionState):
        return replace(state, lease=frozenset(state.lease), release=frozenset(state.release))
    members = {
        name: (member.priority, member.minimum, member.term, frozenset(member.hosts))
        for name, member in state.applications.items()
    }
    regions_ = {name: replace(party, hosts=frozenset(party.hosts)) for name, party in state.regions.items()}
    return replace(state, applications=members, regions=regions_)


DurableManagers.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=50)
TestDurableManagers = DurableManagers.TestCase


# -- single nodes ----------------------------------------------------------------------------------------------------------


def region(cloud, log=None, rules=REGION) -> RegionNode:
    return RegionNode("east", rules, [SMALL, HostType("big", cores=4.0, slots=4)], cloud, log or StateLog(None, "east"))


def order(term: int, *hosts: str, kind: str = "small", **about) -> RegionOrder:
    return RegionOrder("east", term, tuple((host, kind) for host in hosts), **about)


def test_a_restarted_region_takes_no_host_for_empty_without_reports(tmp_path):
    cloud = Cloud()
    rules = RegionRules(spare=0)
    node = region(cloud, StateLog(tmp_path / "j", "east"), rules)
    node.receive(order(1, "h1", used=(("h1", 1, 0.5),)), 0.0)
    node.act()
    cloud.leased = {"h1": True}
    assert node.report(1.0).release == ()
    node._log.close()
    node = region(cloud, StateLog(tmp_path / "j", "east"), rules)
    assert (node.report(2.0).release, node.report(2.0).empty) == ((), ())
    node.receive(order(1, "h1", used=(("h1", 0, 0.0),)), 3.0)
    assert node.report(4.0).release == ("h1",)


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


def test_failures_are_reported_and_retried():
    cloud = Failing()
    node = region(cloud)
    node.receive(order(1, "h1"), 0.0)
    assert node.act() == ["h1 cannot be leased: the quota is used up"]
    assert (node.act(), set(cloud.leased)) == ([], {"h1"})
    node.receive(order(2), 1.0)
    assert node.act() == ["h1 cannot be released: no route to the provider"]
    assert (node.act(), set(cloud.leased)) == ([], set())


def test_an_unknown_type_is_reported():
    node = region(Cloud())
    node.receive(order(1, "h1", kind="huge"), 0.0)
    assert node.act() == ["h1 cannot be leased: there is no host type 'huge' here"]


def test_a_region_without_its_journal_rejoins_and_leases_nothing_twice():
    manager = arbiter()
    cloud = Cloud()
    node = region(cloud)
    for now in range(3):
        node.receive(manager.report(node.report(now)), now)
        node.act()
        manager.round()
    assert len(cloud.ever) == 2
    amnesiac = RegionNode("east", REGION, [SMALL], IdempotentCloud(cloud), StateLog(None, "east"))
    assert amnesiac.unordered_hosts() == ("h1", "h2")
    for now in range(3, 6):
        amnesiac.receive(manager.report(amnesiac.report(now)), now)
        amnesiac.act()
        manager.round()
    assert set(amnesiac.state.region.hosts) == set(cloud.leased) == {"h1", "h2"}
    assert amnesiac.unordered_hosts() == ()
    assert manager.state.regions["east"].number == amnesiac.state.region.number


class IdempotentCloud(Cloud):
    """A provider as the protocol wants it: a name that is leased is not leased again."""

    def __init__(self, cloud: Cloud) -> None:
        super().__init__()
        self.leased, self.ever = cloud.leased, cloud.ever

    def lease(self, hosts):
        if not hosts.keys() <= self.leased.keys():
            super().lease(hosts)


def arbiter(rules: ArbiterRules = RULES, **about) -> ArbiterNode:
    return ArbiterNode(OFFER, rules, StateLog(None, "arbiter"), lambda: 0.0, regions=REGIONS, **about)


def test_an_arbiter_that_lost_its_journal_says_so_and_gives_no_orders():
    fresh = arbiter()
    with pytest.raises(InputError, match="region east has seen term 3, and here only 0 were given"):
        fresh.report(RegionReport("east", 9, 3, ("h1",)))
    key = fresh.join("a", Entitlement())
    with pytest.raises(UnknownMember):
        fresh.claim(Claim("a", 9, 7, ("h1",)), key)
    fresh.round()
    assert fresh.state.hosts == {}


def test_an_application_not_on_the_list_is_refused():
    node = arbiter(entitlements={"a": Entitlement(2.0), "b": Entitlement()})
    with pytest.raises(CloudError, match=r"there is no application 'c' here .there are: a, b."):
        node.join("c", Entitlement())
    node.join("a", Entitlement(9.0))
    assert node.state.applications["a"].priority == 2.0, "the document says what it may expect"
    with pytest.raises(InputError, match=r"there is no region 'south' here .there are: east, west."):
        node.report(RegionReport("south", 1, 0, ()))


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (Entitlement(math.nan), "a priority of nan is out of range"),
        (Entitlement(0.0), "a priority of 0 is out of range: it must be above 0 and at most 1,000,000"),
        (Entitlement(-5.0), "a priority of -5 is out of range: it must be above 0 and at most 1,000,000"),
        (Entitlement(math.inf), "a priority of inf is out of range"),
        (Entitlement(1e308), "is out of range"),
        (Entitlement(1.0, -100), "a minimum of -100 hosts is out of range: it must be from 1 to 10,000"),
        (Entitlement(1.0, 10**6), "a minimum of 1,000,000 hosts is out of range"),
    ],
)
def test_absurd_standings_are_refused_in_a_sentence(standing, said):
    node = arbiter()
    with pytest.raises(CloudError, match=said):
        node.join("a", standing)
    assert not node.state.applications


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"asks": ("small",) * 10**6}, "is about 1,000,000 hosts: at most 10,000 make sense"),
        ({"number": -1}, "has a negative number"),
        ({"spare": (("east", -1),)}, "has fewer than no free slots"),
        ({"used": (("h1", 1, math.nan),)}, "a use that is not a number"),
    ],
)
def test_absurd_claims_are_refused_in_a_sentence(about, said):
    node = arbiter()
    key = node.join("a", Entitlement())
    with pytest.raises(InputError, match=said):
        node.claim(replace(Claim("a", 1, 0, ()), **about), key)


def test_what_cannot_be_written_did_not_happen(tmp_path):
    """The disk is full for a while: nobody joined meanwhile, and the journal can be read later."""
    log = StateLog(tmp_path / "j", "arbiter")
    node = ArbiterNode(OFFER, RULES, log, lambda: 0.0, regions=REGIONS)
    node.join("a", Entitlement())
    real = log._lines._file
    log._lines._file = Full(real)
    with pytest.raises(ElastreamError, match="No space left on device"):
        node.join("b", Entitlement())
    assert (list(node.state.applications), list(node._keys)) == (["a"], ["a"])
    log._lines._file = real
    node.join("c", Entitlement())
    log.close()
    again = ArbiterNode(OFFER, RULES, StateLog(tmp_path / "j", "arbiter"), lambda: 0.0, regions=REGIONS)
    assert set(again.state.applications) == {"a", "c"}


class Full:
    """A file on a disk that takes twenty more bytes."""

    def __init__(self, file) -> None:
        self.file = file
        self.room = 20

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written, self.room = self.file.write(content[: self.room]), 0
        return written

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_refusals_reach_the_region_with_their_reason():
    node = arbiter(ArbiterRules(max_hosts=0), period=1e9)
    node.round()
    node.report(RegionReport("east", 1, 0, (), add=("small-east",)))
    node.round()
    assert node.report(RegionReport("east", 2, 0, ())).refused == "at most 0 hosts may be leased"
    node.round()
    assert node.report(RegionReport("east", 3, 0, ())).refused == ""


def test_a_request_that_no_region_may_meet_is_refused_with_the_reason():
    node = arbiter(ArbiterRules(max_hosts=0))
    key = node.join("a", Entitlement())
    assert node.claim(Claim("a", 1, 1, (), asks=("small-east",)), key).refused.startswith(
        "the manager of east is not heard"
    )
    node.report(RegionReport("east", 1, 0, ()))
    assert node.claim(Claim("a", 2, 1, (), asks=("small-east",)), key).refused.startswith("at most 0 hosts may")
    assert "there is no host type 'huge'" in node.claim(Claim("a", 3, 1, (), asks=("huge",)), key).refused


def test_setting_the_clock_silences_no_member_and_recalls_end_in_time(tmp_path):
    """The process goes by a clock of its own; the next one by the machine's, which was set back by an hour meanwhile."""
    wall, passed = [1e6], [0.0]
    clock = steady_clock(lambda: wall[0], lambda: passed[0])
    rules = replace(RULES, silence=15.0, patience=30.0)
    machines = {"m1": "small-east"}
    offer = Offer("demo", tuple(KINDS.values()), 1)
    node = ArbiterNode(offer, rules, StateLog(tmp_path / "j", "arbiter"), clock, machines=machines)
    key = node.join("low", Entitlement())
    wall[0] += 3600.0
    node.round()
    assert "low" in node.state.applications
    node.claim(Claim("low", 1, 0, (), asks=("small-east",)), key)
    node.round()
    held = node.state.hosts["m1"]
    assert held.owner == "low"
    node._commit(replace(node.state, hosts={"m1": replace(held, tenure=Tenure.RECALLED, until=clock() + 30.0)}), node._keys)
    node._log.close()
    wall[0] -= 7200.0
    again = ArbiterNode(offer, rules, StateLog(tmp_path / "j", "arbiter"), lambda: wall[0], machines=machines)
    assert again.state.hosts["m1"].until == wall[0] + 30.0
    assert again.state.hosts["m1"].since == wall[0]
