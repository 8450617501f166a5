from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.core.hosts import Billing, HostType, Lease
from elastream.sharing.arbiter import decide, join, join_problem, leave
from elastream.sharing.billing import SharedLease, bill, split_settled
from elastream.sharing.messages import Claim, View
from elastream.sharing.rules import ArbiterRules
from elastream.sharing.state import Arbiter, Tenure, initial_state, view_for
from support.property_examples import examples

SMALL = HostType("small", cores=0.5, price=1.0, billing=Billing(30.0))
BIG = HostType("big", cores=2.0, price=4.0, billing=Billing(60.0))
NOTHING = View("", 0)
RULES = ArbiterRules(patience=20.0, silence=15.0, settle=5.0)


def pool(small: int = 4, big: int = 0) -> Arbiter:
    names = [*["small"] * small, *["big"] * big]
    return initial_state((SMALL, BIG), {f"m{number}": kind for number, kind in enumerate(names, start=1)})


def unit_by_unit(lease, spells, now):
    """The rule of `bill` in its plainest form."""
    owed, last, unit = Counter(), spells[0][0], lease.type.billing.unit
    for number in range(lease.units(now)):
        begin, end = lease.since + number * unit, lease.since + (number + 1) * unit
        spells_now = [(who, since, now if until is None else until) for who, since, until in spells]
        whole = next((who for who, since, until in spells_now if since <= begin and until >= end), None)
        held = Counter()
        for who, since, until in spells_now:
            held[who] += max(0.0, min(end, until) - max(begin, since))
        held = (
            {whole: 1.0} if whole is not None else {who: seconds for who, seconds in held.items() if seconds} or {last: 1}
        )
        for who, seconds in held.items():
            owed[who] += lease.type.price * seconds / sum(held.values())
        last = whole or next((who for who, since, _ in reversed(spells_now) if since < end), last)
    return owed


@dataclass
class App:
    """A stand-in for an application: holds what it is told it may have and wants, leaves what it is told to leave."""

    name: str
    wants: int
    kind: str = "small"
    critical: bool = False
    refuses: bool = False
    held: set[str] = field(default_factory=set)
    told: View = NOTHING
    number: int = 0
    said: Claim | None = None

    def claim(self) -> Claim:
        """What it says; holding everything it was told of and does not leave."""
        self.number += 1
        leaving = () if self.refuses else tuple(dict(self.told.recalled))
        self.held = {machine for machine, _, _ in self.told.hosts if machine not in leaving}
        surplus = sorted(self.held)[self.wants :]
        self.held -= set(surplus)
        asks = (self.kind,) * max(0, self.wants - len(self.held))
        refused = tuple(dict(self.told.recalled)) if self.refuses else ()
        self.said = Claim(self.name, self.number, self.told.term, tuple(sorted(self.held)), refused, asks, self.critical)
        return self.said


class Play:
    """A pool and its applications, step by step, a second each."""

    def __init__(self, state: Arbiter, rules: ArbiterRules = RULES) -> None:
        self.state, self.rules, self.now = state, rules, 0.0
        self.apps: dict[str, App] = {}

    def join(self, name: str, wants: int, priority: float = 1.0, minimum: int = 1, kind: str = "small") -> App:
        assert not join_problem(self.state, name, minimum)
        self.state = join(self.state, name, priority, minimum, self.now)
        self.apps[name] = App(name, wants, kind)
        return self.apps[name]

    def step(self, seconds: int = 1, heard: Callable[[str], bool] = lambda name: True) -> "Play":
        for _ in range(seconds):
            self.now += 1.0
            for name, app in self.apps.items():
                if name in self.state.applications and heard(name):
                    self.state = decide(self.rules, self.state, self.now, [app.claim()])[0]
            self.state = decide(self.rules, self.state, self.now)[0]
            for name, app in self.apps.items():
                if name in self.state.applications and heard(name):
                    app.told = view_for(self.state, name)
        return self

    def counts(self) -> dict[str, int]:
        return {name: len(app.held) for name, app in self.apps.items()}


def test_a_second_application_gets_its_minimum_at_once_then_its_share():
    play = Play(pool(4))
    play.join("a", wants=4)
    play.step(2)
    play.join("b", wants=4)
    play.step(3)
    assert play.counts() == {"a": 3, "b": 1}
    play.step(10)
    assert play.counts() == {"a": 2, "b": 2}


def test_a_critical_higher_priority_takes_others_down_to_their_minimum():
    play = Play(pool(6))
    high, _ = play.join("high", wants=6, priority=1.5), play.join("low", wants=6)
    assert play.step(20).counts() == {"high": 4, "low": 2}
    high.critical = True
    assert play.step(20).counts() == {"high": 5, "low": 1}
    high.critical = False
    assert play.step(20).counts() == {"high": 4, "low": 2}


def test_a_refused_recall_is_not_repeated_before_its_patience_ends():
    play = Play(pool(2), replace(RULES, settle=0.0))
    stubborn = play.join("a", wants=2)
    play.step(5)
    stubborn.refuses = True
    play.join("b", wants=1)
    recalls = []
    for _ in range(45):
        play.step()
        recalls += [play.now for machine in play.state.hosts.values() if machine.tenure is Tenure.RECALLED]
    assert play.counts() == {"a": 2, "b": 0}
    # Both machines were tried, each once in 20 s.
    assert 2 <= len(recalls) <= 8


def test_a_recall_that_is_no_longer_needed_is_cancelled():
    play = Play(pool(2), replace(RULES, settle=0.0))
    play.join("a", wants=2)
    play.step(5)
    b = play.join("b", wants=1)
    play.state = decide(RULES, play.state, play.now, [b.claim()])[0]
    assert view_for(play.state, "a").recalled
    b.wants = 0
    play.state = decide(RULES, play.state, play.now, [b.claim()])[0]
    assert not view_for(play.state, "a").recalled


def test_a_dead_applications_machines_return_after_its_silence():
    play = Play(pool(2))
    play.join("a", wants=2)
    play.step(5)
    play.step(14, heard=lambda name: False)
    assert play.state.applications["a"].hosts
    play.step(2, heard=lambda name: False)
    assert "a" not in play.state.applications
    assert all(machine.owner == "" for machine in play.state.hosts.values())


def test_an_application_that_leaves_frees_its_name_and_its_machines():
    play = Play(pool(2))
    play.join("a", wants=2)
    play.step(5)
    play.state = leave(RULES, play.state, "a", play.now)
    assert not join_problem(play.state, "a", 2)
    assert {machine.tenure for machine in play.state.hosts.values()} == {Tenure.FREE}


def test_an_unrequested_machine_is_kept_until_the_end_of_its_paid_unit():
    play = Play(pool(1))
    app = play.join("a", wants=1)
    play.step(10)
    app.wants = 0
    play.step(5)
    assert play.state.hosts["m1"].tenure is Tenure.FREE
    play.step(20)
    assert play.state.hosts["m1"].tenure is Tenure.IDLE
    assert play.state.settled == {"a": 1.0}


def test_a_machine_that_changes_hands_stays_leased():
    play = Play(pool(1), replace(RULES, settle=0.0))
    a = play.join("a", wants=1)
    play.step(5)
    a.wants = 0
    play.step(1)
    play.apps.pop("a")
    play.state = leave(RULES, play.state, "a", play.now)
    play.join("b", wants=1)
    play.step(5)
    (paid,) = play.state.leases.values()
    assert [who for who, _, _ in paid.spells] == ["a", "b"]
    assert not play.state.settled


def test_kinds_are_shared_each_by_itself():
    play = Play(pool(2, big=2))
    play.join("a", wants=2, kind="big")
    play.join("b", wants=2, kind="small")
    play.step(5)
    assert [play.state.hosts[m].kind for m in sorted(play.apps["a"].held)] == ["big", "big"]
    assert [play.state.hosts[m].kind for m in sorted(play.apps["b"].held)] == ["small", "small"]


@pytest.mark.parametrize(
    ("minimum", "said"),
    [(1, ""), (2, "'b' cannot be sure of 2 hosts: there are 3 of 'small', of which 2 are promised to others")],
)
def test_minima_beyond_the_machines_are_refused(minimum, said):
    play = Play(pool(3, big=5))
    play.join("a", wants=1, minimum=2)
    assert join_problem(play.state, "b", minimum) == said


def test_a_name_is_taken_while_its_application_lives():
    play = Play(pool())
    play.join("a", wants=1)
    assert join_problem(play.state, "a", 1) == "an application called 'a' is a member already"


def test_a_disconnected_application_regains_unassigned_machines():
    play = Play(pool(2))
    play.join("a", wants=2)
    play.step(5)
    held = play.apps["a"].held
    play.step(20, heard=lambda name: False)
    assert "a" not in play.state.applications
    play.join("b", wants=1)
    play.step(3, heard=lambda name: name == "b")
    (taken,) = play.apps["b"].held
    back = play.join("a", wants=2)
    back.told = View("a", 0, tuple((host, "small", 0) for host in sorted(held)))
    play.step(3)
    assert back.held == held - {taken}


class TestBill:
    @given(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(-40, 200), st.integers(0, 90)), min_size=1, max_size=10),
        st.integers(1, 900),
        st.booleans(),
    )
    def test_units_one_by_one_come_to_the_same_also_where_a_clock_was_set_back(self, turns, until, open_at_the_end):
        now, spells = 0.0, []
        for who, pause, held in turns:
            spells.append((who, float(now + pause), float(now + pause + held)))
            now = max(0, now + pause + held)
        if open_at_the_end:
            spells[-1] = (*spells[-1][:2], None)
        lease = Lease("m1", SMALL, 0.0)
        assert bill([SharedLease(lease, tuple(spells))], until) == pytest.approx(unit_by_unit(lease, spells, until))

    @given(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 70), st.integers(0, 90)), min_size=4, max_size=12),
        st.sampled_from((Billing(30.0), Billing(1.0, 60.0), Billing(600.0))),
    )
    def test_a_past_that_was_settled_and_the_rest_are_billed_as_the_whole(self, turns, billing):
        began, spells = 1_700_000_000.3, []
        now = began
        for who, held, pause in turns:
            spells.append((who, now, now + held))
            now += held + pause
        whole = SharedLease(Lease("m1", replace(SMALL, billing=billing), began), tuple(spells))
        past, rest = split_settled(whole, now, max_spells=3)
        assert past is None or (past.lease.until < now and len(rest.spells) <= len(whole.spells))
        for later in (now + 0.3, now + 7.3, now + 1000.3):
            both = Counter(bill([] if past is None else [past], later)) + Counter(bill([rest], later))
            assert both == pytest.approx(bill([whole], later))


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("want", "critical", "drop", "double", "die", "join", "refuse")),
        st.sampled_from("abc"),
        st.integers(0, 6),
    ),
    max_size=40,
)


@settings(max_examples=examples(150))
@given(EVENTS, st.integers(3, 6))
def test_no_machine_has_two_holders_whatever_messages_are_lost_or_doubled(events, size):  # noqa: C901
    play = Play(pool(size))
    for name in "abc":
        play.join(name, wants=2, priority="abc".index(name) + 1)
    for what, name, number in events:
        app, lost = play.apps[name], False
        if what == "want":
            app.wants = number
        elif what == "critical":
            app.critical = bool(number % 2)
        elif what == "refuse":
            app.refuses = bool(number % 2)
        elif what == "drop":
            lost = True
        elif what == "double" and name in play.state.applications and app.said:
            again = replace(app.said, asks=("small",) * 5, hosts=())
            heard, unheard = (decide(RULES, play.state, play.now, said)[0] for said in ([again], []))
            assert heard.hosts == unheard.hosts
            assert heard.applications[name].asks == unheard.applications[name].asks
        elif what == "die":
            app.wants, app.held = 0, set()
        elif what == "join" and name not in play.state.applications:
            play.join(name, wants=number)
        play.step(heard=lambda each, name=name, lost=lost: not (lost and each == name))
        held = [machine for each, one in play.apps.items() if each in play.state.applications for machine in one.held]
        assert len(held) == len(set(held))
        for machine, record in play.state.hosts.items():
            assert (record.owner in play.state.applications) == (record.tenure in (Tenure.HELD, Tenure.RECALLED))
            assert (machine in play.state.leases) == (record.tenure is not Tenure.IDLE)
            if record.owner:
                assert play.state.leases[machine].spells[-1][0] == record.owner


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.booleans()), max_size=8), st.integers(4, 8))
def test_no_application_starves_whatever_the_others_request(changes, size):
    play = Play(pool(size))
    for position, name in enumerate("abc"):
        play.join(name, wants=2, priority=10.0**position)
    for name, wants, critical in changes:
        play.apps[name].wants, play.apps[name].critical = wants, critical
        play.step(6)
        # Within the time that a recall takes to be heard, whoever wants a machine has one.
        assert all(play.apps[name].held for name in "abc" if play.apps[name].wants)


def test_of_a_lease_that_has_ended_what_is_owed_for_it_is_kept():
    play = Play(pool(1))
    app = play.join("a", wants=1)
    for times in range(1, 7):
        app.wants = 1
        play.step(10)
        app.wants = 0
        play.step(60)
        assert not play.state.leases
        assert play.state.settled == {"a": times}
