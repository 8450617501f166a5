"""The campaign of faults in small: schedules repeat, a few of them break no rule, and an undone mend is noticed."""

import pytest
from campaign.history import Commit, History, Ledgers, checked, content_of, row_of
from campaign.mutants import MUTANTS
from campaign.schedule import KINDS, OWN, SHARED, Fault, Schedule, drawn, from_json, shortened, to_json
from campaign.world import ran
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_schedule_repeats_by_its_seed_and_is_read_as_it_was_written(seed, faults):
    schedule = drawn(seed, faults)
    assert schedule == drawn(seed, faults) == from_json(to_json(schedule))
    assert len(schedule.faults) == faults
    assert all(fault.who in KINDS[fault.kind].who[schedule.world] for fault in schedule.faults)


def test_a_failing_schedule_is_made_as_short_as_what_makes_it_fail():
    schedule = drawn(4, 20)
    first, last = schedule.faults[3], schedule.faults[17]
    shorter = shortened(schedule, lambda each: {first, last} <= set(each.faults))
    assert shorter.faults == (first, last)


@pytest.mark.parametrize("world", [OWN, SHARED])
def test_faults_break_no_rule(world):
    history, broken = ran(drawn(1, 5, world))
    assert not broken
    assert history.sink
    assert history.calls


@pytest.mark.parametrize("seed", range(3))
def test_reports_that_cross_a_move_break_no_rule(seed):
    faults = [Fault(40.0 + 10 * n, "reports of executors late", "a", seconds=30.0) for n in range(4)]
    faults += [Fault(55.0, "a host dies", "a"), Fault(65.0, "an executor dies", "a")]
    assert not ran(Schedule(seed, OWN, ((0.0, 200.0), (60.0, 700.0), (90.0, 150.0)), tuple(faults)))[1]


def test_a_run_repeats():
    assert ran(drawn(2, 3)) == ran(drawn(2, 3))


def test_an_undone_mend_is_noticed():
    schedule = Schedule(0, OWN, ((0.0, 200.0),), (Fault(50.0, "the clock is set", "all", 3600.0),))
    assert not ran(schedule)[1]
    mutant = next(each for each in MUTANTS if each.name == "the clock is believed")
    with mutant.at_work():
        assert {each.rule for each in ran(schedule)[1]} == {"unknown"}


def test_a_task_just_before_a_fence_is_not_cut_off():
    race = Fault(50.0, "a task just before a fence", "a", seconds=200.0)
    schedule = Schedule(0, OWN, ((0.0, 700.0), (60.0, 150.0)), (race,))
    assert not ran(schedule)[1]
    mutant = next(each for each in MUTANTS if each.name == "busy executors end")
    with mutant.at_work():
        assert {each.rule for each in ran(schedule)[1]} == {"work"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_what_a_mutant_replaces_is_there_and_comes_back(mutant):
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in mutant.parts]
    with mutant.at_work():
        assert all(vars(owner)[name] is not value for owner, name, value in before)
    assert all(vars(owner)[name] is value for owner, name, value in before)


def of(query, batch, start, end, *, loaded=None, salt="", rows=None):
    """What is noted of a batch of one partition."""
    loaded = batch if loaded is None else loaded
    commit = Commit(1.0, query, batch, 0, "h1", loaded, batch + 1, content_of(0, salt, start, end))
    return commit, (1.0, query, batch, start, end, rows or row_of(start, end))


@pytest.mark.parametrize(
    ("batches", "rules"),
    [
        ([of("q", 0, 0, 5), of("q", 1, 5, 9)], set()),
        ([of("q", 0, 0, 5), of("q", 0, 0, 5), of("q", 1, 5, 9)], set()),
        ([of("q", 0, 0, 5), of("q", 0, 0, 6)], {"sink", "content"}),
        ([of("q", 0, 0, 5), of("q", 1, 6, 9)], {"sink"}),
        ([of("q", 0, 0, 5, rows="others")], {"sink"}),
        ([of("q", 0, 0, 5), of("q", 0, 0, 5, salt="elsewhere")], {"content"}),
        ([of("q", 0, 0, 5), of("q", 1, 5, 9, loaded=0)], {"versions"}),
    ],
    ids=["well", "repeated", "another range", "a gap", "other rows", "two contents", "an old version"],
)
def test_the_checkers_find_what_is_wrong_with_a_history_and_nothing_else(batches, rules):
    history = History(commits=[commit for commit, _ in batches], sink=[sink for _, sink in batches])
    assert {each.rule for each in checked(history)} == rules


@pytest.mark.parametrize(
    ("ended", "active", "listed", "said"),
    [
        ({"h1"}, {"h2"}, {"h2"}, ""),
        ({"h1"}, set(), {"h2"}, "orphan"),
        ({"h1"}, {"h2"}, set(), "gone"),
        (set(), {"h2"}, {"h2"}, "no ledger"),
    ],
)
def test_leases_and_provider_must_agree(ended, active, listed, said):
    from campaign.history import Call

    history = History(calls=[Call(1.0, "a", "lease", ("h1", "h2"), "ok")])
    ledgers = Ledgers({"a": frozenset(ended)}, {"a": frozenset(active)}, {"a": frozenset(listed)})
    broken = [str(each) for each in checked(history, ledgers)]
    assert bool(broken) == bool(said)
    assert all(said in each or "no ledger" in each for each in broken)
