"""The safety claims of the hierarchy under messages that are late, lost, doubled and out of order.

A small world: two regions, two applications, one infrastructure manager, a network that does what hypothesis likes. Regions
ask for anything at all, also to release hosts in full use; hosts die; applications place on whatever they hold.
"""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastream.core.hosts import HostType
from elastream.policies.e2df import applications, regions
from elastream.policies.e2df.applications import Application, ApplicationRules
from elastream.policies.e2df.regions import Region, RegionRules
from elastream.sharing import holder
from elastream.sharing.arbiter import decide
from elastream.sharing.messages import Claim, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Arbiter, HostRecord, Tenure, adopt
from support.property_examples import examples

Message = Claim | View | RegionReport | RegionOrder
REGIONS, APPLICATIONS = ("east", "west"), {"a": 1.0, "b": 1.0}
SMALL = HostType("small", cores=1.0, region="east")
RULES = ArbiterRules(by_spare=True, patience=50.0, max_hosts=8)
APPLICATION_RULES = ApplicationRules(settle=20.0)
REGION_RULES = RegionRules(settle=10.0)


class Protocol(RuleBasedStateMachine):
    """Managers, the hosts that are really there, and messages under way."""

    sharing = RULES

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        records = {
            f"h{number}": HostRecord(region, "small", Tenure.HELD, owner)
            for number, (region, owner) in enumerate((r, a) for r in REGIONS for a in APPLICATIONS)
        }
        self.manager: Arbiter = replace(adopt(records, REGIONS, APPLICATIONS, 10), kinds={"small": SMALL})
        self.regions = {
            name: Region(name, 1, hosts=dict.fromkeys(ward.hosts, 0.0)) for name, ward in self.manager.regions.items()
        }
        self.applications = {
            name: Application(name, 1, hosts=dict.fromkeys(ward.hosts, "small"))
            for name, ward in self.manager.applications.items()
        }
        self.leased = dict.fromkeys(records, True)
        self.ever = list(records)
        self.dead: set[str] = set()
        self.running: set[tuple[str, str]] = set()
        self.pending: dict[tuple[str, str], float] = {}
        self.network: list[Message] = []

    # -- what managers say ---------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(REGIONS), add=st.integers(0, 2), data=st.data())
    def region_reports(self, name: str, add: int, data: st.DataObject) -> None:
        region = self.regions[name]
        some = st.sets(st.sampled_from(sorted(region.hosts) or [""]), max_size=3).map(tuple)
        leased = {host: up for host, up in self.leased.items() if host not in self.dead}
        self.regions[name], report = regions.report(REGION_RULES, region, self.now, leased)
        release, drain, empty = (data.draw(some) for _ in range(3))
        self.network.append(
            replace(report, add=("small",) * add, release=release, drain=drain, utilisation=0.5, empty=empty)
        )

    @rule(name=st.sampled_from(sorted(APPLICATIONS)), critical=st.booleans(), spare=st.integers(0, 3))
    def application_answers(self, name: str, critical: bool, spare: int) -> None:
        occupied = frozenset(host for who, host in self.running if who == name)
        self.applications[name], said = applications.answer(
            APPLICATION_RULES, self.applications[name], self.now, occupied, critical, (("east", spare),)
        )
        self.network.append(said)

    @rule(name=st.sampled_from(sorted(APPLICATIONS)), critical=st.booleans(), asks=st.integers(0, 3), data=st.data())
    def an_application_requests_hosts_and_gives_some_back_unasked(
        self, name: str, critical: bool, asks: int, data: st.DataObject
    ) -> None:
        mine = self.applications[name]
        needed = {host for who, host in {*self.running, *self.pending} if who == name} | set(mine.granted)
        gone = data.draw(st.sets(st.sampled_from(sorted(mine.hosts) or [""]), max_size=2)) - needed
        refused = tuple(sorted(needed.intersection(mine.leave)))
        self.applications[name], said = holder.claim(
            mine, gone, refused=refused, asks=("small",) * asks, critical=critical, spare=(("east", asks),)
        )
        self.network.append(said)

    # -- what the network does -----------------------------------------------------------------------------------------

    @rule(data=st.data())
    def infrastructure_decides(self, data: st.DataObject) -> None:
        """It hears some of what is under way, in any order, some of it twice; what it heard may come once more."""
        upwards = [m for m in self.network if isinstance(m, RegionReport | Claim)]
        heard = data.draw(st.just(upwards) | st.lists(st.sampled_from(upwards), max_size=4)) if upwards else []
        self.manager, told = decide(self.sharing, self.manager, self.now, heard)
        again, _ = decide(self.sharing, self.manager, self.now, heard)
        assert again == self.manager, "a doubled message changed something"
        self.network += [message for message in told if message not in self.network]

    @precondition(lambda self: self.downwards)
    @rule(data=st.data())
    def a_message_arrives(self, data: st.DataObject) -> None:
        """It stays under way, and may come again at any time."""
        self.deliver(data.draw(st.sampled_from(self.downwards)))

    @property
    def downwards(self) -> list[Message]:
        """Orders and views under way, the newest first: hypothesis prefers what comes first."""
        return [m for m in reversed(self.network) if not isinstance(m, RegionReport | Claim)]

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def a_message_is_lost(self, data: st.DataObject) -> None:
        self.network.remove(data.draw(st.sampled_from(self.network)))

    def deliver(self, message: Message) -> None:
        if isinstance(message, View):
            heard = holder.receive(self.applications[message.application], message)
            assert holder.receive(heard, message) == heard, "a doubled view changed something"
            self.applications[message.application] = heard
        elif not isinstance(message, RegionReport | Claim):
            region, lease, release = regions.receive(self.regions[message.region], message, self.now)
            assert regions.receive(region, message, self.now) == (region, (), ()), "a doubled order changed something"
            self.regions[message.region] = region
            for host, _ in lease:
                assert host not in self.ever, f"{host} is leased twice"
                self.leased[host] = False
                self.ever.append(host)
            for host in release:
                self.release(host)

    def release(self, host: str) -> None:
        assert host in self.dead or not {h for _, h in self.running} & {host}, f"{host} is released under a replica"
        assert host in self.dead or not {h for _, h in self.pending} & {host}, f"{host} is released under a placement"
        assert host in self.dead or not any(host in a.hosts for a in self.applications.values()), f"{host} is still held"
        self.leased.pop(host)

    # -- what the world does -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 15.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        # A placement that was granted shows within the settling time or never.
        self.pending = {who: at for who, at in self.pending.items() if self.now - at < APPLICATION_RULES.settle}

    @precondition(lambda self: not all(self.leased.values()))
    @rule(data=st.data())
    def a_host_comes_up(self, data: st.DataObject) -> None:
        self.leased[data.draw(st.sampled_from(sorted(h for h, up in self.leased.items() if not up)))] = True

    @precondition(lambda self: set(self.leased) - self.dead)
    @rule(data=st.data())
    def a_host_dies(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(sorted(set(self.leased) - self.dead)))
        self.dead.add(host)
        self.running = {each for each in self.running if each[1] != host}
        self.pending = {each: at for each, at in self.pending.items() if each[1] != host}

    @rule(name=st.sampled_from(sorted(APPLICATIONS)), data=st.data())
    def an_application_places_a_replica(self, name: str, data: st.DataObject) -> None:
        mine = self.applications[name]
        open_ = sorted(set(mine.open) - self.dead)
        if open_:
            host = data.draw(st.sampled_from(open_))
            self.applications[name] = replace(mine, granted={**mine.granted, host: self.now})
            self.pending[name, host] = self.now

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def a_placement_shows(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.pending)))
        del self.pending[who]
        self.running.add(who)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_replica_is_gone(self, data: st.DataObject) -> None:
        self.running.remove(data.draw(st.sampled_from(sorted(self.running))))

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def no_two_applications_hold_one_host(self) -> None:
        held = [host for application in self.applications.values() for host in application.hosts]
        assert len(held) == len(set(held)), held

    @invariant()
    def no_two_regions_have_one_host(self) -> None:
        had = [host for region in self.regions.values() for host in region.hosts]
        assert len(had) == len(set(had)), had

    @invariant()
    def who_holds_a_host_is_its_owner_on_record_and_it_is_leased(self) -> None:
        for name, application in self.applications.items():
            for host in set(application.hosts) - self.dead:
                record = self.manager.hosts.get(host)
                if record is not None:
                    assert record.owner == name, (host, record, name)
                    assert host in self.leased, host

    @invariant()
    def every_replica_stands_on_a_leased_host(self) -> None:
        standing = {host for _, host in self.running} | {host for _, host in self.pending}
        assert standing <= set(self.leased), standing


Protocol.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50)
TestProtocol = Protocol.TestCase


class ByDemand(Protocol):
    """The same where hosts are shared by what applications request, and may be recalled while they are in use."""

    sharing = replace(RULES, by_spare=False)


ByDemand.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50)
TestByDemand = ByDemand.TestCase


def without_terms(state: Arbiter) -> tuple[object, ...]:
    """What a manager knows, but for the counters that only tell old from new."""
    return (
        {host: replace(record, term=0) for host, record in state.hosts.items()},
        {name: set(ward.hosts) for name, ward in state.regions.items()},
        {name: set(ward.hosts) for name, ward in state.applications.items()},
        state.unsettled,
        state.next_number,
    )


hosts_in_use = st.lists(st.tuples(st.sampled_from(REGIONS), st.sampled_from(sorted(APPLICATIONS))), min_size=2, max_size=8)


@given(hosts_in_use, st.data(), st.booleans())
def test_a_drain_that_is_cancelled_leaves_no_trace(
    hosts: list[tuple[str, str]], data: st.DataObject, critical: bool
) -> None:
    """The application cannot leave in time, or refuses because it is critical: all is as it was."""
    records = {f"h{k}": HostRecord(region, "small", Tenure.HELD, owner) for k, (region, owner) in enumerate(hosts)}
    manager = adopt(records, REGIONS, APPLICATIONS, 100)
    held = {
        name: Application(name, 1, hosts=dict.fromkeys(manager.applications[name].hosts, "small")) for name in APPLICATIONS
    }
    before = without_terms(manager), {name: (a.hosts, a.leave) for name, a in held.items()}
    drain = tuple(data.draw(st.lists(st.sampled_from(sorted(records)), min_size=1, unique=True)))
    reports = [
        RegionReport(name, 1, 1, manager.regions[name].hosts, drain=tuple(h for h in drain if records[h].region == name))
        for name in REGIONS
    ]
    manager, told = decide(RULES, manager, 0.0, reports)
    assert told
    for now in (10.0, 50.0, 51.0):
        for message in told:
            if isinstance(message, View):
                held[message.application] = holder.receive(held[message.application], message)
        said = []
        for name in APPLICATIONS:
            held[name], holding = applications.answer(
                APPLICATION_RULES, held[name], now, frozenset(records), critical
            )  # all hosts are in use
            said.append(holding)
        manager, told = decide(RULES, manager, now, said)
    assert (without_terms(manager), {name: (a.hosts, a.leave) for name, a in held.items()}) == before
    assert told == ()


@given(st.lists(st.lists(st.booleans(), min_size=8, max_size=8), max_size=8), st.integers(1, 4), st.integers(1, 4))
def test_lost_messages_only_delay_what_managers_agree_on(arrives: list[list[bool]], east: int, west: int) -> None:
    """Regions that want a number of hosts have it, and applications hold them, once messages come through again."""
    wanted = {"east": east, "west": west}
    rules = ArbiterRules(by_spare=True)
    manager = adopt({}, REGIONS, APPLICATIONS, 1)
    had = {name: Region(name, 1) for name in REGIONS}
    held = {name: Application(name, 1) for name in APPLICATIONS}
    leased: dict[str, bool] = {}
    for number, lets in enumerate([*arrives, *[[True] * 8] * 5]):
        now = 60.0 * number
        channel = iter(lets)
        said = []
        for name in REGIONS:
            lacking = ("small",) * max(0, wanted[name] - len(had[name].hosts))
            had[name], report = regions.report(REGION_RULES, had[name], now, leased)
            said += [replace(report, add=lacking)] if next(channel) else []
        for name in APPLICATIONS:
            held[name], holding = applications.answer(APPLICATION_RULES, held[name], now, frozenset(), False)
            said += [holding] if next(channel) else []
        manager, told = decide(rules, manager, now, said)
        for message in told:
            if not next(channel, True):
                continue
            if isinstance(message, View):
                held[message.application] = holder.receive(held[message.application], message)
            else:
                had[message.region], lease, _ = regions.receive(had[message.region], message, now)
                leased |= {host: True for host, _ in lease}
    assert {name: len(region.hosts) for name, region in had.items()} == wanted
    assert {name: set(ward.hosts) for name, ward in manager.regions.items()} == {n: set(r.hosts) for n, r in had.items()}
    assert {n: set(w.hosts) for n, w in manager.applications.items()} == {n: set(a.hosts) for n, a in held.items()}
    assert set(leased) == set(manager.hosts) == {host for a in held.values() for host in a.hosts}
    assert not manager.unsettled
