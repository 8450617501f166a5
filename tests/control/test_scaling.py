"""The user's rules for the number of hosts: what each refuses, by name, whatever policy proposes it."""

import math
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.clouds.local.local import Local
from elastream.clouds.standalone import Standalone
from elastream.control.loop import Loop
from elastream.control.scaling import Scaling, ScalingLimits, with_window
from elastream.core.action import CancelDrain, DrainHost, LeaseHost, ReleaseHost, SetParallelism
from elastream.core.fitting import check_rules
from elastream.core.hosts import Billing, HostState, Lease
from elastream.core.plant import Plan
from elastream.core.scaling import ScalingRules, rule_of
from elastream.errors import InputError
from elastream.policies.by_load import ByLoad
from elastream.policies.highest_value import HighestValue
from elastream.policies.static import Static
from elastream.policies.threshold import Threshold
from elastream.recording.recorder import Collector
from support.fake_plant import SMALL, FakePlant

MONDAY_10 = 4 * 86400.0 + 10 * 3600.0
"""Monday, 5 January 1970, 10:00 UTC."""


class Says:
    """A policy that proposes, and recommends, what the function of the observation says."""

    name = "says"

    def __init__(self, plan):
        self._plan = plan

    def plan(self, observation, memory=None):
        found = self._plan(observation)
        return found if isinstance(found, Plan) else Plan(tuple(found))


def grow(number=1):
    return Says(lambda seen: [LeaseHost(seen.host_name(n), "small") for n in range(number)])


def shrink(number=1, hosts=None):
    return Says(lambda seen: Plan(tuple(DrainHost(host) for host in seen.usable[-number:]), hosts=hosts))


def run(policy, *, limit=20.0, plant=None, epoch=0.0, **rules):
    """Leases by time, and the rules that refused, round by round (2 s apart)."""
    plant = plant or FakePlant(hosts=4, max_hosts=40)
    collector = Collector()
    header = None
    loop = Loop(plant, policy, limit=limit, observers=[collector], scaling=ScalingRules(**rules), header=header)
    loop._scaling.epoch = epoch
    loop.run()
    decisions = collector.recording.decisions
    refused = {d.time: {rule_of(p.refused) for p in d.proposals if p.refused} for d in decisions}
    granted = {d.time: sum(o.succeeded for o in d.outcomes) for d in decisions}
    return plant, refused, granted


def test_growth_waits_until_the_whole_window_up_wanted_it():
    _, refused, granted = run(grow(), limit=12.0, stabilization_up="6s")
    assert granted[0.0] == 1  # the first round deploys
    assert [at for at, rules in refused.items() if rules == {"stabilization_up"}] == [2.0, 4.0, 6.0, 10.0]
    assert granted[8.0] == 1


def test_hosts_go_down_to_the_highest_number_recommended_in_the_window():
    wanted = {0.0: 4.0, 2.0: 2.0, 4.0: 3.2, 6.0: 1.0}

    def plan(seen):
        hosts = wanted.get(seen.time, 1.0)
        return Plan(tuple(DrainHost(host) for host in seen.usable[1:]), hosts=hosts)

    _, refused, granted = run(Says(plan), limit=18.0, plant=FakePlant(hosts=5), stabilization_down=6.0)
    # Until 10 s, 3.2 hosts are within the window: one of five may go, once the five there were at first are not.
    assert [at for at, number in granted.items() if number] == [8.0, 12.0]
    assert (granted[8.0], granted[12.0]) == (1, 3)
    assert refused[4.0] == {"stabilization_down"}


def test_without_recommendation_a_window_starts_at_the_first_wish():
    """Many give hosts back one by one, as what is paid of each ends: silent rounds between do not begin it anew."""

    def plan(seen):
        return [DrainHost(seen.usable[-1])] if seen.time in (4.0, 12.0, 14.0) else []

    _, refused, granted = run(Says(plan), limit=20.0, stabilization_down=6.0)
    assert refused[4.0] == {"stabilization_down"}
    assert (granted[12.0], granted[14.0]) == (1, 1)


def test_growth_begins_the_window_down_anew():
    def plan(seen):
        if seen.time == 6.0:
            return [LeaseHost(seen.host_name(), "small")]
        return [DrainHost(seen.usable[-1])] if seen.time in (0.0, 10.0, 14.0, 16.0) else []

    _, refused, granted = run(Says(plan), limit=18.0, stabilization_down=6.0)
    assert refused[10.0] == refused[14.0] == {"stabilization_down"}  # at 8 s five hosts were wanted
    assert granted[16.0] == 1


def test_scale_downs_are_apart_and_one_may_take_several():
    _, refused, granted = run(shrink(2), limit=12.0, plant=FakePlant(hosts=9, max_hosts=9), scale_down_interval="8s")
    assert [at for at, number in granted.items() if number] == [0.0, 8.0]
    assert granted[0.0] == 2
    assert refused[4.0] == {"scale_down_interval"}


def test_no_more_hosts_come_at_a_time_than_a_multiple_of_those_that_work():
    _, refused, granted = run(grow(9), limit=8.0, max_scale_up=0.5)
    assert granted[0.0] == 9  # the first round deploys, 13 work from 4 s on
    assert granted[4.0] == 6
    assert refused[2.0] == {"max_scale_up"}


def test_one_host_may_always_come_or_go():
    limits = ScalingLimits(ScalingRules(max_scale_up=0.1, max_scale_down=0.1), host_count=2, base=2)
    seen = FakePlant(hosts=2).observe()
    assert limits.refusal(LeaseHost("h3", "small"), seen, ()) == ""
    assert limits.refusal(LeaseHost("h4", "small"), seen, (LeaseHost("h3", "small"),)).startswith(
        "max_scale_up: 2 hosts work"
    )
    assert limits.refusal(DrainHost("h1"), seen, ()) == ""
    assert limits.refusal(DrainHost("h2"), seen, (DrainHost("h1"),)).startswith("max_scale_down: at most 1 of 2 hosts")


def test_hosts_that_are_leaving_count_among_those_that_go_at_a_time():
    limits = ScalingLimits(ScalingRules(max_scale_down=0.5), host_count=3, base=4, draining=1)
    plant = FakePlant(hosts=4)
    plant.apply(DrainHost("h4"))
    seen = plant.observe()
    assert limits.refusal(DrainHost("h3"), seen, ()) == ""
    assert "at most 2 of 4" in limits.refusal(DrainHost("h2"), seen, (DrainHost("h3"),))


@pytest.mark.parametrize(
    ("wanted", "refused"), [(4.0, True), (4.4, True), (4.5, False), (3.6, True), (3.5, False), (math.nan, False)]
)
def test_what_is_wanted_may_differ_from_what_is_there_by_the_tolerance(wanted, refused):
    limits = ScalingLimits(ScalingRules(tolerance=0.1), host_count=4, base=4, recommended=wanted)
    seen = FakePlant(hosts=4).observe()
    for action in (LeaseHost("h5", "small"), DrainHost("h1")):
        said = limits.refusal(action, seen, ())
        assert said.startswith("tolerance: ") if refused else said == ""


def test_hosts_stay_while_what_waits_takes_longer_than_it_may():
    plant = FakePlant(hosts=4, arrival_rate=1000.0, max_hosts=4)  # 400 records/s fit
    _, refused, granted = run(shrink(), limit=6.0, plant=plant, catch_up="1s")
    assert granted[0.0] == 1
    assert refused[4.0] == {"catch_up"}


def test_in_an_excluded_period_nothing_is_scaled():
    rules = {"excluded_periods": ["* 10 * * 1-5"], "time_zone": "UTC"}
    _, refused, granted = run(grow(), limit=2.0, epoch=MONDAY_10, **rules)
    assert (granted[0.0], refused[0.0]) == (0, {"excluded_periods"})
    _, refused, granted = run(shrink(), limit=2.0, epoch=MONDAY_10, **rules)
    assert (granted[0.0], refused[0.0]) == (0, {"excluded_periods"})
    _, refused, _ = run(Says(lambda _: [SetParallelism("source", 2)]), limit=2.0, epoch=MONDAY_10, **rules)
    assert refused[0.0] == {"excluded_periods"}
    _, _, granted = run(grow(), limit=2.0, epoch=MONDAY_10 + 3600, **rules)
    assert granted[0.0] == 1


def test_what_was_lost_in_an_excluded_period_is_replaced():
    class Losing(FakePlant):
        def observe(self):
            if self.clock.now() == 4.0:
                self.lose("h4")
            return super().observe()

    rules = {"excluded_periods": ["* 10 * * *"], "time_zone": "UTC"}
    _, _, granted = run(grow(2), limit=10.0, plant=Losing(hosts=4), epoch=MONDAY_10, **rules)
    assert [at for at, number in granted.items() if number] == [4.0]
    assert granted[4.0] == 1


def test_an_excluded_period_begins_and_ends_with_its_minutes():
    rules = ScalingRules(excluded_periods="30-31 10 * * *", time_zone="Europe/Vienna")  # 9:30 UTC in winter
    at = 4 * 86400.0 + 9 * 3600.0 + 30 * 60.0
    assert [bool(rules.excluded(at + seconds)) for seconds in (-0.1, 0.0, 119.9, 120.0)] == [False, True, True, False]


@pytest.mark.parametrize(
    ("rule", "zone", "night", "minutes"),
    [
        ("* 1-4 * * *", "Europe/Vienna", "2026-10-25", 300),
        ("* 3 * * *", "Europe/Vienna", "2026-10-25", 60),
        ("* * * * *", "Europe/Vienna", "2026-10-25", 540),
        ("0 3 * * *", "Europe/Vienna", "2026-10-25", 1),
        ("*/5 2 * * *", "Europe/Vienna", "2026-10-25", 24),
        ("30 2 * * *", "Europe/Vienna", "2026-10-25", 2),
        ("* 1-4 * * *", "Europe/Vienna", "2026-03-29", 180),
        ("* 3 * * *", "Europe/Vienna", "2026-03-29", 60),
        ("* 2 * * *", "Europe/Vienna", "2026-03-29", 0),
        ("* 1 * * *", "America/New_York", "2026-11-01", 120),
        ("* 3 * * *", "America/New_York", "2026-03-08", 60),
        ("* 1 * * *", "America/Sao_Paulo", "2018-11-04", 60),
        ("* 2 * * *", "Australia/Lord_Howe", "2026-04-05", 60),
        ("* 1 * * *", "Australia/Lord_Howe", "2026-04-05", 90),
        ("* 0 * * *", "Atlantic/Azores", "2026-10-25", 120),
        ("* 0 * * *", "Africa/Cairo", "2026-04-24", 0),
        ("* * 25 10 *", "Europe/Vienna", "2026-10-25", 540),
    ],
)
def test_at_a_change_of_the_clock_minutes_are_those_on_the_wall(rule, zone, night, minutes):
    rules = ScalingRules(excluded_periods=rule, time_zone=zone)
    midnight = datetime.fromisoformat(night).replace(tzinfo=ZoneInfo(zone)).timestamp()
    wall = [datetime.fromtimestamp(midnight + 60.0 * n, ZoneInfo(zone)) for n in range(9 * 60)]
    assert sum(bool(rules.excluded(each.timestamp() + 7.0)) for each in wall) == minutes


def test_bounds_hold_for_the_policy_and_for_arbitration():
    _, refused, granted = run(grow(9), limit=4.0, max_hosts=6)
    assert granted[0.0] == 2
    assert refused[0.0] == {"max_hosts"}
    _, refused, _ = run(shrink(), limit=4.0, min_hosts=4)
    assert refused[0.0] == {"min_hosts"}


def test_the_default_policy_leases_as_many_as_the_rule_wants_at_least():
    plant, _, _ = run(Threshold(host_type="small"), limit=20.0, plant=FakePlant(hosts=1), min_hosts=3)
    assert sum(lease.ready_at() is not None for lease in plant.ledger) == 3


def test_a_host_below_the_minimum_is_leased_whatever_the_windows():
    seen = FakePlant(hosts=0).observe()
    limits = ScalingLimits(
        ScalingRules(stabilization_up=60.0, max_scale_up=0.1, tolerance=0.5), lowest=0.0, recommended=0.0
    )
    assert limits.refusal(LeaseHost("h1", "small"), seen, ()) == ""


def test_a_drain_and_the_release_of_the_same_host_are_one():
    limits = ScalingLimits(ScalingRules(max_scale_down=0.25), host_count=4, base=4)
    seen = FakePlant(hosts=4).observe()
    assert limits.refusal(ReleaseHost("h1"), seen, (DrainHost("h1"),)) == ""


def test_keeping_a_draining_host_is_never_refused():
    plant = FakePlant(hosts=2)
    plant.apply(DrainHost("h2"))
    limits = ScalingLimits(ScalingRules(stabilization_up=9.0, budget="1/h"), host_count=1, lowest=1.0, excluded="* * * * *")
    assert limits.refusal(CancelDrain("h2"), plant.observe(), ()) == ""


@pytest.mark.parametrize("policy", [Threshold(host_type="small"), ByLoad(Threshold(settle=60.0, host_type="small"))])
def test_the_window_down_replaces_that_of_the_default_policy(policy):
    """Ten records/s at 10 ms need one host of four; the policy's own windows are 10 and 60 s."""
    plant = FakePlant(hosts=4, partitions=4)
    _, refused, _ = run(policy, limit=40.0, plant=plant, stabilization_down=20.0)
    gone = [at for lease in plant.ledger for at, state in lease.history if state is HostState.DRAINING]
    assert min(gone) < 35.0
    assert min(gone) >= 20.0
    assert any(rules == {"stabilization_down"} for rules in refused.values())


def test_recommendations_are_recorded_whether_or_not_they_are_followed():
    collector = Collector()
    Loop(FakePlant(hosts=1), shrink(hosts=2.5), limit=2.0, observers=[collector]).run()
    assert collector.recording.decisions[0].hosts == 2.5


@pytest.mark.parametrize("recommended", [None, math.nan, math.inf])
def test_a_missing_recommendation_is_read_from_the_actions(recommended):
    scaling, seen = Scaling(), FakePlant(hosts=3).observe()
    for actions, wanted in (([], 3), ([LeaseHost("h4", "small")], 4), ([DrainHost("h1"), DrainHost("h2")], 1)):
        scaling.limits(actions, recommended, seen)
        assert scaling.recommended == wanted


# What can be set.


@pytest.mark.parametrize(
    ("rules", "field", "said"),
    [
        ({"stabilization_down": "5 parsecs"}, "stabilization_down", "'5 parsecs' is not a duration"),
        ({"stabilization_up": math.inf}, "stabilization_up", "has no end"),
        ({"max_scale_up": 0}, "max_scale_up", "not a factor above 0"),
        ({"max_scale_down": 1.5}, "max_scale_down", "at most 1"),
        ({"tolerance": -0.1}, "tolerance", "below 1"),
        ({"tolerance": "much"}, "tolerance", "could not convert"),
        ({"tolerance": "0,1"}, "tolerance", "could not convert"),
        ({"max_scale_up": True}, "max_scale_up", "True is not a number"),
        ({"budget": "2,5/h"}, "budget", "a comma separates thousands"),
        ({"min_hosts": 0}, "min_hosts", "not a whole number"),
        ({"max_hosts": 2.5}, "max_hosts", "not a whole number"),
        ({"min_hosts": 3, "max_hosts": 2}, "min_hosts", "more than max_hosts, 2"),
        ({"excluded_periods": "* 25 * * *"}, "excluded_periods", "not a cron expression (Bad hour)"),
        ({"excluded_periods": ["* * *"]}, "excluded_periods", "not have five fields"),
        ({"time_zone": "Mars/Base"}, "time_zone", "no time zone 'Mars/Base'"),
        ({"budget": "12"}, "budget", "'12/h' or '200/d'"),
        ({"budget": "12/s"}, "budget", "'12/h' or '200/d'"),
        ({"budget": "0/h"}, "budget", "'12/h' or '200/d'"),
        ({"budget": 12}, "budget", "'12/h' or '200/d'"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_field(rules, field, said):
    with pytest.raises(InputError) as raised:
        ScalingRules(**rules)
    assert raised.value.at == ("scaling", field)
    assert said in str(raised.value)


def test_the_command_line_sets_changes_and_takes_away_rules():
    rules = ScalingRules(max_scale_up=1.0, tolerance=0.1).with_pairs(
        [
            "max_scale_up=",
            "stabilization_down=5min",
            "max_hosts=4",
            "excluded_periods=* 9 * * 1,3",
            "excluded_periods=* 10 * * *",
        ]
    )
    assert rules.set == {
        "tolerance": 0.1,
        "stabilization_down": 300.0,
        "max_hosts": 4,
        "excluded_periods": ("* 9 * * 1,3", "* 10 * * *"),
    }


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("max_scale_up", "not KEY=VALUE"),
        ("most=3", "there is no rule 'most'; there are stabilization_up"),
        ("max_hosts=many", "--scaling: max_hosts: 'many' is not a whole number"),
    ],
)
def test_a_wrong_option_is_one_sentence(pair, said):
    with pytest.raises(InputError, match="--scaling") as raised:
        ScalingRules().with_pairs([pair])
    assert said in str(raised.value)


def test_rules_that_the_cloud_cannot_keep_are_refused_before_a_run():
    kind = replace(SMALL, price=2.0, billing=Billing(1800.0))
    with pytest.raises(InputError, match="min_hosts: 5 is more than the cloud has, 4"):
        check_rules(ScalingRules(min_hosts=5), 4, [kind])
    with pytest.raises(InputError, match=r"budget: 3 hosts of type 'small' for 12.00 in 60.0 min, .* more than 11/h"):
        check_rules(ScalingRules(min_hosts=3, budget="11/h"), 4, [kind])
    check_rules(ScalingRules(min_hosts=3, budget="12/h"), 4, [kind])


# Money.

MINUTES = 600.0
"""Seconds of the budget's period in the property."""


def test_a_refusal_for_the_budget_says_what_it_would_cost():
    plant = FakePlant(hosts=0)
    plant.context = replace(plant.context, host_types={"small": replace(SMALL, price=1.0, billing=Billing(600.0))})
    collector = Collector()
    Loop(plant, grow(), limit=6.0, observers=[collector], scaling=ScalingRules(budget="13/h")).run()
    refused = [p.refused for d in collector.recording.decisions for p in d.proposals if p.refused]
    assert refused[0] == "budget: 3 hosts would cost 18.00 in this hour, and the budget is 13.00"


@given(
    amount=st.integers(1, 60),
    unit=st.sampled_from([1.0, 7.0, 60.0, 150.0, 600.0, 900.0]),
    minimum=st.sampled_from([0.0, 60.0, 100.0]),
    price=st.sampled_from([0.01, 0.3, 1.0, 5.0]),
    script=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), min_size=5, max_size=60),
)
def test_the_budget_is_never_exceeded(amount, unit, minimum, price, script):
    """Whatever a policy leases, releases and loses: the units that begin in a period cost no more than its budget."""
    kind = replace(SMALL, price=price, billing=Billing(unit, minimum), start=4.0)
    plant = FakePlant(hosts=0, max_hosts=50)
    plant.context = replace(plant.context, host_types={"small": kind})
    rest = iter(script)

    def plan(seen):
        leases, releases, loses = next(rest, (3, 0, False))
        if loses and seen.usable:
            plant.lose(seen.usable[0])
        gone = [host for host in seen.usable[1:] if plant._leases[host].active][:releases]
        return [*(LeaseHost(seen.host_name(n), "small") for n in range(leases)), *map(ReleaseHost, gone)]

    end = 3 * MINUTES + 17.0
    Loop(plant, Says(plan), monitor=13.0, period=26.0, limit=end, scaling=ScalingRules(budget=f"{amount}/h")).run()
    for begin in (0.0, 3600.0):
        assert _spent(plant.ledger, begin, begin + 3600.0) <= amount + 1e-6


def _spent(leases: list[Lease], begin: float, end: float) -> float:
    """What the units cost that begin in [begin, end), counted one by one."""
    total = 0.0
    for lease in leases:
        units = lease.units(lease.until)
        early = lease.type.billing.units(0.0)  # of the minimum, all at once
        starts = [lease.since + max(0, n - early + 1) * lease.type.billing.unit for n in range(units)]
        total += lease.type.price * sum(begin <= at < end - 1e-9 for at in starts)
    return total


class TestTheWindowOfACloud:
    """Five minutes on a leased cluster, where neither rules nor policy say otherwise."""

    @pytest.mark.parametrize("policy", [Threshold(), ByLoad(), ByLoad(hosts=Threshold()), HighestValue(sizing=Threshold())])
    def test_a_default_policy_gets_it(self, policy):
        assert with_window(ScalingRules(max_hosts=8), policy, 300.0) == ScalingRules(max_hosts=8, stabilization_down=300.0)

    @pytest.mark.parametrize(
        ("rules", "policy", "seconds"),
        [
            (ScalingRules(stabilization_down="20s"), Threshold(), 300.0),
            (ScalingRules(stabilization_down="0s"), Threshold(), 300.0),
            (ScalingRules(), Threshold(settle=20.0), 300.0),
            (ScalingRules(), ByLoad(hosts=Threshold(settle=20.0)), 300.0),
            (ScalingRules(), HighestValue(), 300.0),
            (ScalingRules(), Static(2, {}), 300.0),
            (ScalingRules(), Threshold(), 0.0),
        ],
    )
    def test_what_somebody_chose_stays_and_other_policies_get_no_rule(self, rules, policy, seconds):
        assert with_window(rules, policy, seconds) is rules

    def test_clusters_have_it_and_processes_of_this_machine_have_not(self):
        assert Standalone("spark://127.0.0.1:7077").stabilization_down == 300.0
        assert getattr(Local(), "stabilization_down", 0.0) == 0.0
