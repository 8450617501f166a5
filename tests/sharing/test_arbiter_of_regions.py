"""What the infrastructure manager grants, asks for and cancels."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.hosts import HostType, LifecycleError
from elastream.policies.e2df import applications, regions
from elastream.policies.e2df.applications import Application, ApplicationRules
from elastream.policies.e2df.regions import Region, RegionRules
from elastream.sharing import holder
from elastream.sharing.arbiter import Ledger, decide
from elastream.sharing.messages import Claim, RegionOrder, RegionReport, View
from elastream.sharing.rules import ArbiterRules, RegionFacts
from elastream.sharing.state import TRANSITIONS, Arbiter, HostRecord, Tenure, adopt, order_for, view_for

RULES = ArbiterRules(by_spare=True, patience=100.0)


def viewed(region: str = "east", owner: str = "a") -> HostRecord:
    return HostRecord(region, "small", Tenure.HELD, owner)


def start(a: float = 1.0, **hosts: HostRecord) -> Arbiter:
    return adopt(hosts, ("east", "west"), {"a": a, "b": 1.0}, 10)


def asks(region: str = "east", up: tuple[str, ...] = (), number: int = 1, seen: int = 1, **more) -> RegionReport:
    return RegionReport(region, number, seen, up, **more)


def orders(told) -> dict[str, tuple[str, ...]]:
    return {m.region: tuple(host for host, _ in m.hosts) for m in told if isinstance(m, RegionOrder)}


def views(told) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    found = (m for m in told if isinstance(m, View))
    return {m.application: (tuple(each[0] for each in m.hosts), tuple(dict(m.recalled))) for m in found}


def refusals(told) -> dict[str, str]:
    return {m.region: m.refused for m in told if isinstance(m, RegionOrder) and m.refused}


def test_a_requested_host_is_ordered_comes_up_and_is_assigned() -> None:
    state, told = decide(RULES, start(), 0.0, [asks(add=("small",))])
    assert (orders(told), views(told)) == ({"east": ("h10",)}, {})
    state, told = decide(RULES, state, 60.0, [asks(up=("h10",), number=2, seen=2)])
    assert views(told) == {"a": (("h10",), ())}
    assert state.hosts["h10"].tenure is Tenure.HELD


def test_an_unacknowledged_order_is_repeated_and_blocks_its_region() -> None:
    state, first = decide(RULES, start(), 0.0, [asks(add=("small",))])
    state, second = decide(RULES, state, 60.0, [asks(add=("small",), number=2)])
    assert orders(first) == orders(second)
    assert decide(RULES, state, 120.0, [asks(number=3, seen=2, coming=("h10",))])[1] == ()


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (ArbiterRules(by_spare=True, regions={"east": RegionFacts(price=3)}, max_price=2), "costs 3 a second"),
        (ArbiterRules(by_spare=True, regions={"east": RegionFacts(latency=0.2)}, max_latency=0.1), "0.2 s away"),
        (ArbiterRules(by_spare=True, regions={"east": RegionFacts(capacity=1)}), "as many hosts as it can have, 1"),
        (ArbiterRules(by_spare=True, max_hosts=1), "at most 1 host may be leased"),
        (ArbiterRules(by_spare=True, prefer=("west",)), "west is preferred"),
    ],
    ids=["price", "latency", "capacity", "hosts in all", "another region preferred"],
)
def test_a_region_is_refused_with_the_reason(rules: ArbiterRules, reason: str) -> None:
    state = start(h1=viewed())
    after, told = decide(rules, state, 0.0, [asks(up=("h1",), add=("small",))])
    assert reason in refusals(told)["east"]
    assert after.hosts == state.hosts


def test_a_preferred_region_that_is_silent_or_may_not_grow_blocks_no_other() -> None:
    rules = replace(RULES, prefer=("west",), regions={"west": RegionFacts(price=2.0)}, absence=50.0)
    state, told = decide(rules, start(), 10.0, [asks("west", add=()), asks(add=("small",))])
    assert refusals(told) == {"east": "west is preferred and has room"}
    late = [asks(add=("small",), number=2)]
    assert refusals(decide(rules, state, 60.0, late)[1]) == {"east": "west is preferred and has room"}
    assert refusals(decide(rules, state, 61.0, late)[1]) == {}
    assert refusals(decide(replace(rules, max_price=1.0), state, 60.0, late)[1]) == {}


def test_a_host_that_is_coming_in_a_region_not_heard_is_not_waited_for() -> None:
    state = start(**dict.fromkeys(THREE, viewed()), h4=HostRecord("west", "small"))
    said = [Claim("a", 1, 1, THREE, spare=(("east", 2),)), Claim("b", 1, 1, ())]
    report = asks(up=THREE, empty=("h2",))
    assert views(decide(RULES, state, 100.0, [report, *said])[1]) == {}
    assert views(decide(RULES, state, 1000.0, [report, *said])[1]) == {"a": (THREE, ("h2",))}


def test_a_draining_host_is_withheld_and_removed_once_released() -> None:
    state, told = decide(RULES, start(h1=viewed(), h2=viewed()), 0.0, [asks(up=("h1", "h2"), drain=("h1",))])
    assert views(told) == {"a": (("h1", "h2"), ("h1",))}
    assert orders(told) == {}
    state, told = decide(RULES, state, 60.0, [Claim("a", 1, 2, ("h2",))])
    assert orders(told) == {"east": ("h2",)}
    assert set(state.hosts) == {"h2"}


def test_the_last_hosts_stay() -> None:
    state, (order,) = decide(RULES, start(h1=viewed()), 0.0, [asks(up=("h1",), release=("h1",))])
    assert order.kept == (("h1", "infrastructure manager", "at least 1 host must stay"),)
    assert state.hosts["h1"].tenure is Tenure.HELD


def test_a_host_that_its_region_lost_leaves_every_view() -> None:
    state, told = decide(RULES, start(h1=viewed(), h2=viewed()), 0.0, [asks(up=("h2",))])
    assert set(state.hosts) == {"h2"}
    assert views(told) == {"a": (("h2",), ())}


def test_a_free_host_goes_to_the_least_spare_per_priority() -> None:
    said = [Claim("a", 1, 1, (), spare=(("east", 3),)), Claim("b", 1, 1, (), spare=(("east", 2),))]
    for priority, owner in ((1.0, "b"), (2.0, "a")):
        state = start(priority, h1=HostRecord("east", "small", Tenure.FREE))
        assert set(views(decide(RULES, state, 0.0, said)[1])) == {owner}


def test_free_hosts_of_one_round_are_shared_out() -> None:
    free = {f"h{k}": HostRecord("east", "small", Tenure.FREE) for k in range(1, 5)}
    said = [Claim(name, 1, 1, (), spare=(("east", 0),)) for name in ("a", "b")]
    told = views(decide(RULES, start(**free), 0.0, said)[1])
    assert [len(hosts) for hosts, _ in told.values()] == [2, 2]


def test_a_region_hardly_used_is_consolidated() -> None:
    rules = replace(RULES, consolidate_below=0.3)
    report = asks(up=("h1", "h2"), utilisation=0.3, idlest="h2")
    assert views(decide(rules, start(h1=viewed(), h2=viewed()), 0.0, [report])[1]) == {"a": (("h1", "h2"), ("h2",))}
    assert decide(rules, start(h1=viewed(), h2=viewed()), 0.0, [replace(report, utilisation=0.31)])[1] == ()


def test_a_host_goes_only_where_the_table_lets_it() -> None:
    ledger = Ledger(RULES, start(h1=viewed()), 0.0)
    with pytest.raises(LifecycleError, match="'h1' of a cannot go from held to ordered"):
        ledger.to("h1", Tenure.ORDERED)
    assert all(tenure in TRANSITIONS for tenure in Tenure)


# -- an application without room beside one that has it --------------------------------------------------------------------

THREE = ("h1", "h2", "h3")


def beside(a: int, b: int, priority: float = 1.0) -> tuple[Arbiter, tuple[RegionOrder | View, ...]]:
    """After a round in which a has three hosts and `a` slots to spare, and b one host, in use, and `b` elsewhere."""
    said = [
        Claim("a", 1, 1, THREE, spare=(("east", a),)),
        Claim("b", 1, 1, ("h4",), spare=(("east", 0), ("west", b))),
    ]
    state = start(priority, **dict.fromkeys(THREE, viewed()), h4=viewed(owner="b"))
    return decide(RULES, state, 0.0, [asks(up=(*THREE, "h4"), empty=("h2", "h3")), *said])


def test_an_empty_host_is_left_for_an_application_that_has_no_room() -> None:
    state, told = beside(2, 0)
    assert views(told) == {"a": (THREE, ("h3",))}
    assert order_for(state, "east").leaving == (), "it does not go: the region still counts it"
    state, told = decide(RULES, state, 60.0, [Claim("a", 2, 2, ("h1", "h2"))])
    assert views(told) == {"a": (("h1", "h2"), ()), "b": (("h4", "h3"), ())}
    assert orders(told) == {}, "nothing is leased or released for it"


@pytest.mark.parametrize(
    ("a", "b", "priority"),
    [
        (1, 0, 1.0),  # it would have no more than the other then
        (2, 1, 1.0),  # the other has room
        (3, 0, 4.0),  # three for four are less than one for one
    ],
)
def test_no_host_is_left_where_that_would_not_be_fair(a: int, b: int, priority: float) -> None:
    assert views(beside(a, b, priority)[1]) == {}


def test_one_host_at_a_time_is_left_and_one_that_is_coming_is_waited_for() -> None:
    state, _ = beside(2, 0)
    said = [Claim("a", 2, 1, THREE, spare=(("east", 2),)), Claim("b", 2, 1, ("h4",))]
    again = asks(up=(*THREE, "h4"), empty=("h2", "h3"), number=2)
    state, told = decide(RULES, state, 60.0, [again, *said])
    assert views(told) == {"a": (THREE, ("h3",))}
    coming = start(**dict.fromkeys(THREE, viewed()), h4=HostRecord("east", "small"))
    said = [Claim("a", 1, 1, THREE, spare=(("east", 2),)), Claim("b", 1, 1, ())]
    assert views(decide(RULES, coming, 0.0, [asks(up=THREE, coming=("h4",), empty=("h2",)), *said])[1]) == {}


def test_a_host_not_left_in_time_stays_and_no_region_is_notified() -> None:
    state, _ = beside(2, 0)
    state, told = decide(RULES, state, 100.0, [])
    assert (state.hosts["h3"].tenure, state.hosts["h3"].owner, state.hosts["h3"].heir) == (Tenure.HELD, "a", "")
    assert views(told) == {"a": (THREE, ())}
    assert orders(told) == {}


@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=4), st.floats(0.2, 5))
def test_neither_of_two_applications_starves(most: int, wants: list[tuple[int, int]], weight: float) -> None:
    """On `most` hosts of one slot, all a's at first: both come to one, whatever they wanted, once one leaves some."""
    rules = replace(RULES, max_hosts=most, min_hosts=0)
    records = {f"h{k}": viewed() for k in range(1, most + 1)}
    manager = adopt(records, ("east",), {"a": weight, "b": 1.0}, most + 1)
    region = Region("east", 1, 0, dict.fromkeys(records, 0.0))
    held = {"a": Application("a", 1, 0, dict.fromkeys(records, "small")), "b": Application("b", 1)}
    placed: dict[str, set[str]] = {"a": set(), "b": set()}
    for number, want in enumerate(want for want in [*wants, (most, 1), (1, most)] for _ in range(8)):
        now = 60.0 * number
        for (name, mine), many in zip(placed.items(), want, strict=True):
            room = sorted(set(held[name].hosts) - set(held[name].leave) - mine)
            placed[name] = {*sorted(mine)[:many], *room[: max(0, many - len(mine))]}
        busy = placed["a"] | placed["b"]
        empty = tuple(host for host in region.hosts if host not in busy)
        add = ("small",) * max(0, 2 - len(empty))
        region, report = regions.report(RegionRules(), region, now, dict.fromkeys(region.hosts, True))
        said = replace(report, add=add, empty=empty)
        holdings = []
        for name, each in held.items():
            spare = (("east", len(set(each.hosts) - placed[name])),) if each.hosts else ()
            occupied = frozenset(placed[name])
            held[name], holding = applications.answer(ApplicationRules(), each, now, occupied, False, spare)
            holdings.append(holding)
        manager, _ = decide(rules, manager, now, [said, *holdings])
        region, *_ = regions.receive(region, order_for(manager, "east"), now)
        held = {name: holder.receive(each, view_for(manager, name)) for name, each in held.items()}
    assert placed["a"]
    assert placed["b"]


# -- shared by what applications request -----------------------------------------------------------------------------------

EAST, WEST = (HostType(f"small-{region}", cores=1.0, region=region) for region in ("east", "west"))
DEMAND = ArbiterRules(
    patience=20.0, min_hosts=0, regions={"east": RegionFacts(capacity=2), "west": RegionFacts(capacity=1)}
)


def requested(name: str, number: int, seen: int = 1, hosts: tuple[str, ...] = (), n: int = 1, **about) -> Claim:
    return Claim(name, number, seen, hosts, asks=("small-east",) * n, **about)


def demand(**hosts: HostRecord) -> Arbiter:
    records = {name: replace(record, kind="small-east") for name, record in hosts.items()}
    return replace(start(**records), kinds={kind.name: kind for kind in (EAST, WEST)})


def test_an_unmet_request_is_ordered_and_granted_once_its_host_is_up() -> None:
    state, told = decide(DEMAND, demand(), 0.0, [asks(), requested("a", 1)])
    assert orders(told) == {"east": ("h10",)}
    state, told = decide(DEMAND, state, 0.5, [requested("a", 2)])
    assert state.next_number == 11, "one that is on order is waited for"
    state, told = decide(DEMAND, state, 1.0, [asks(number=2, seen=2, up=("h10",))])
    assert views(told)["a"] == (("h10",), ())


def test_no_host_is_ordered_of_a_region_that_is_not_heard() -> None:
    state, _ = decide(DEMAND, demand(), 1000.0, [requested("a", 1)])
    assert (dict(state.hosts), state.applications["a"].refused) == ({}, "the manager of east is not heard")


def test_without_growth_a_host_is_recalled_for_the_entitled_application() -> None:
    state = demand(h1=viewed(), h2=viewed())
    state, _ = decide(DEMAND, state, 0.0, [asks(up=("h1", "h2")), requested("b", 1)])
    (recalled,) = view_for(state, "a").recalled
    assert recalled == ("h2", "b is entitled to 1 of 2 'small-east'")
    state, _ = decide(DEMAND, state, 1.0, [Claim("a", 1, 2, ("h1",)), requested("b", 2)])
    assert [host for host, _, _ in view_for(state, "b").hosts] == ["h2"]
    assert order_for(state, "east").hosts == (("h1", "small-east"), ("h2", "small-east")), "it stays leased"


def test_an_application_with_its_share_gets_that_reason() -> None:
    state = demand(h1=viewed(), h2=viewed(owner="b"))
    state, _ = decide(DEMAND, state, 0.0, [asks(up=("h1", "h2")), requested("b", 1, hosts=("h2",))])
    assert state.applications["b"].refused == "east has as many hosts as it can have, 2; the share of b is 1 of 2"


def test_a_host_of_a_critical_application_is_not_drained() -> None:
    state = demand(h1=viewed(), h2=viewed())
    report = asks(up=("h1", "h2"), drain=("h1",))
    state, _ = decide(DEMAND, state, 0.0, [Claim("a", 1, 1, ("h1", "h2"), critical=True)])
    state, told = decide(DEMAND, state, 1.0, [report])
    assert state.hosts["h1"].tenure is Tenure.HELD
    (order,) = (message for message in told if isinstance(message, RegionOrder))
    assert order.kept == (("h1", "application manager of a", "its response time is over its target"),)


def test_how_used_hosts_are_reaches_their_region_only() -> None:
    state = demand(h1=viewed(), h2=viewed("west"))
    state, _ = decide(DEMAND, state, 0.0, [Claim("a", 1, 1, ("h1", "h2"), used=(("h1", 1, 0.4), ("h2", 0, None)))])
    assert order_for(state, "east").used == (("h1", 1, 0.4),)
    assert order_for(state, "west").used == (("h2", 0, None),)


def test_a_new_host_goes_to_its_requester_before_its_region_drops_it() -> None:
    state, _ = decide(DEMAND, demand(), 0.0, [asks(), requested("a", 1)])
    report = asks(number=2, seen=2, up=("h10",), release=("h10",), empty=("h10",))
    state, _ = decide(replace(DEMAND, settle=15.0), state, 1.0, [report, requested("a", 2)])
    assert [host for host, _, _ in view_for(state, "a").hosts] == ["h10"]
    again = replace(report, number=3)
    assert view_for(decide(replace(DEMAND, settle=15.0), state, 15.0, [again])[0], "a").recalled == ()
    assert view_for(decide(replace(DEMAND, settle=15.0), state, 16.0, [again])[0], "a").recalled[0][0] == "h10"
    nobody, _ = decide(DEMAND, decide(DEMAND, demand(), 0.0, [asks(add=("small-east",))])[0], 1.0, [report])
    assert not nobody.hosts, "nobody requests it: it goes"


def test_a_host_without_a_region_is_part_of_no_share() -> None:
    kinds = {"small": HostType("small", cores=1.0, region="east")}
    begun = replace(start(h0=viewed(), h1=viewed(owner="b"), h3=viewed("west", "b")), kinds=kinds)
    rules = replace(RULES, by_spare=False)
    heard = [
        Claim("a", 1, 1, ("h0",)),
        Claim("b", 1, 1, ("h1", "h3"), asks=("small",)),
        asks("west", up=("h3",), drain=("h3",)),
    ]
    state, _ = decide(rules, begun, 181.0, heard)
    assert state.applications["b"].refused.endswith("the share of b is 1 of 2")
    assert decide(rules, state, 181.0, heard)[0] == state
