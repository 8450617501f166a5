"""Policy ring: observations in, changes of tokens and hosts out."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from elastream.core.action import KINDS, DrainHost, LeaseHost, ReleaseHost, SetParallelism, SetTokens
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.core.ring import Ring, in_zones
from elastream.core.task_id import TaskId
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.policies.ring.load import RingLoad
from elastream.policies.ring.policy import RingBalance, RingMemory
from support.policy_run import OneRun

ONE = HostType("one", cores=1.0, billing=Billing(1.0), start=8.0, stop=2.0)
P = 16


def words():
    flow = Dataflow("words")
    lines = flow.source(None, name="in")
    lines.flat_map(str.split, returns="word string", name="split").key_by("word").count(name="count").sink(None)
    return flow


LAYOUT = lay_out(words().graph)
NAMES = tuple(LAYOUT.graph.by_name)


def seen(time, cpu, *, ring=None, waits=0.0, rate=100.0, done=None, loads=None, errors=None, states=None, zones=None,  # noqa: PLR0913
    types=(ONE,), at=None, kinds=None, batch=math.nan, latency=math.nan, age=0.0, moving=frozenset(), **bounds,
):  # fmt: skip
    """Hosts used as `cpu` says, h1 on, all on `ring` (at even tokens); waits: seconds of records; loads: by partition."""
    hosts = [f"h{number + 1}" for number in range(len(cpu))]
    states = states or [HostState.RUNNING] * len(cpu)
    kinds = kinds or ([replace(ONE, zone=zone) for zone in zones] if zones else [ONE] * len(cpu))
    ring = Ring.even(hosts) if ring is None else ring
    owners = (at or ring).hosts_of(P) if ring else tuple(hosts[number * len(hosts) // P] for number in range(P))
    column = dict.fromkeys(NAMES, math.nan)
    values = {
        Metric.ARRIVAL_RATE: [{**column, "in": rate}[name] for name in NAMES],
        Metric.PROCESSED_RATE: [{**column, "in": rate if done is None else done}[name] for name in NAMES],
        Metric.BACKLOG: [{**column, "in": waits * rate}[name] for name in NAMES],
        Metric.PARALLELISM: [float(len(cpu))] * len(NAMES),
    }
    count = NAMES.index("count")
    return Observation(
        time=time,
        context=Context(
            LAYOUT,
            {kind.name: kind for kind in types},
            2.0,
            capabilities=frozenset(KINDS),
            partitions={"count": P},
            **bounds,
        ),
        operators=Frame(NAMES, values),
        application=Frame(("words",), {Metric.BATCH_DURATION: [batch], Metric.LATENCY: [latency]}),
        hosts=Frame(hosts, {Metric.CPU: cpu}, {Metric.CPU: age}),
        tasks=TaskFrame(
            [count] * P,
            range(P),
            [hosts.index(owner) for owner in owners],
            NAMES,
            {
                metric: column
                for metric, column in ((Metric.BUSY_CORES, loads), (Metric.BUSY_CORES_ERROR, errors))
                if column is not None
            },
        ),
        leases={
            host: Lease(host, kind, 0.0, state, ((0.0, state),))
            for host, kind, state in zip(hosts, kinds, states, strict=True)
        },
        rings={"count": ring} if ring else {},
        moving=moving,
        next_host=len(hosts) + 1,
    )


def after(policy, *rounds):
    """Actions of the first of `rounds` in which hosts or rings change, and its plan; of the last where none does."""
    run = OneRun(policy)
    for each in rounds:
        plan = run.plan(each)
        if actions := [action for action in plan.actions if not isinstance(action, SetParallelism)]:
            break
    return actions, plan


def lasting(cpu, seconds=20.0, **more):
    """The same observation every two seconds from 0 to `seconds`."""
    return [seen(2.0 * number, cpu, **more) for number in range(int(seconds / 2) + 1)]


def test_first_ring_alternates_zones():
    (action,), _ = after(RingBalance(), seen(0.0, [0.1] * 4, ring={}, zones="aabb"))
    assert isinstance(action, SetTokens)
    assert [token for _, token in action.tokens] == [0.0, 0.25, 0.5, 0.75]
    zones = ["aabb"[int(host[1:]) - 1] for host, _ in action.tokens]
    assert zones in (["a", "b", "a", "b"], ["b", "a", "b", "a"])


def test_overloaded_host_gives_half_to_its_light_neighbour():
    actions, _ = after(RingBalance(), *lasting([0.9, 0.2, 0.2], waits=3.0))
    assert actions == [SetTokens("count", tuple(Ring({"h1": 0.0, "h2": 3 / 16, "h3": 2 / 3}).tokens.items()))]


@pytest.mark.parametrize(
    "rounds",
    [
        lasting([0.9, 0.4, 0.4], waits=0.0),
        lasting([0.5, 0.4, 0.4], waits=3.0),
        [*lasting([0.4, 0.4, 0.2]), seen(22.0, [0.9, 0.4, 0.2], waits=3.0)],
    ],
    ids=["no queue", "no full host", "a moment"],
)
def test_only_a_lasting_queue_at_a_full_host_changes_anything(rounds):
    assert after(RingBalance(), *rounds)[0] == []


def test_a_neighbour_that_is_not_light_asks_its_own_first():
    actions, _ = after(RingBalance(), *lasting([0.9, 0.5, 0.2], waits=3.0))
    (action,) = actions
    ring = Ring(dict(action.tokens))
    assert [len(ring.partitions(host, P)) for host in ("h1", "h2", "h3")] == [3, 6, 7]
    assert "h1 is overloaded, h3 is light" in action.why


@pytest.mark.parametrize("age", [0.0, 6.0], ids=["", "long batches"])
@pytest.mark.parametrize("placed", [False, True], ids=["", "placed before its state is there"])
def test_no_decision_until_metrics_show_the_last_change(age, placed):
    policy, run = RingBalance(), OneRun(RingBalance())
    moved = Ring({"h1": 0.0, "h2": 3 / 16, "h3": 2 / 3})
    for each in lasting([0.9, 0.2, 0.2], waits=3.0):
        plan = run.plan(each)
    for time in np.arange(22.0, 50.0, 2.0).tolist():
        before = plan
        under_way = time < 28.0
        plan = run.plan(
            seen(
                time,
                [0.9, 0.2, 0.2],
                ring=moved,
                waits=3.0,
                age=age,
                at=Ring.even(("h1", "h2", "h3")) if under_way and not placed else None,
                moving=frozenset([TaskId("count", 3)] if under_way and placed else []),
            )
        )
        changes = [action for action in plan.actions if isinstance(action, SetTokens)]
        assert bool(changes) == (time >= 26.0 + policy.cool_down + age), (time, before)
        if changes:
            break


def test_without_a_light_host_as_many_are_leased_as_are_needed():
    busy = lasting([0.9, 0.9, 0.9], waits=3.0)
    assert after(RingBalance(), *busy)[0] == [LeaseHost("h4", "one")]
    far_behind = lasting([0.9, 0.9, 0.9], waits=9.0, rate=200.0, done=100.0)
    # 2.7 cores for half of what arrives: 5.4 cores are to fill 0.7 of so many, five hosts more, of which four join at once.
    assert after(RingBalance(), *far_behind)[0] == [LeaseHost(f"h{number}", "one") for number in (4, 5, 6, 7)]


def test_backlog_of_a_load_that_ended_needs_no_more_hosts():
    given = seen(0.0, [0.9, 0.9], rate=0.0, done=100.0, batch=1.0, latency=9.0)
    columns = {each: given.operators.column(each) for each in given.operators.metrics}
    left = Frame(NAMES, {**columns, Metric.BACKLOG: [500.0 if name == "in" else math.nan for name in NAMES]})
    load = RingLoad(replace(given, operators=left), 0.7)
    assert load.without_pause
    assert load.enough(0.03) == 0.0


def test_a_host_that_comes_joins_between_the_fullest_and_its_neighbour():
    ring = Ring({"h1": 0.0, "h2": 0.5})
    (action,), _ = after(RingBalance(), seen(0.0, [0.7, 0.2, 0.0], ring=ring, loads=[0.08] * 8 + [0.02] * 8))
    joined = Ring(dict(action.tokens))
    assert joined.nodes == ("h1", "h3", "h2")
    assert joined.tokens == {"h1": 0.0, "h3": 0.25, "h2": 0.5}
    (blind,), _ = after(RingBalance(), seen(0.0, [0.7, 0.2, 0.0], ring=Ring({"h1": 0.0, "h2": 0.75})))
    assert dict(blind.tokens)["h3"] == 0.375, "mid-way in the longest interval, where nothing is known of the loads"
    heavy = [0.3] * 2 + [0.01] * 14
    (by_load,), _ = after(RingBalance(), seen(0.0, [0.7, 0.2, 0.0], ring=ring, loads=heavy))
    assert dict(by_load.tokens)["h3"] == 1 / 16, "half would leave both heavy partitions where they are"


def test_replacement_joins_where_the_lost_host_was():
    # h2 was lost: h3 took over its interval, [0.25, 0.5), and is the fullest.
    ring = Ring({"h1": 0.0, "h3": 0.25, "h4": 0.75})
    (action,), _ = after(RingBalance(), seen(0.0, [0.2, 0.0, 0.4, 0.2], ring=ring, zones="abab", loads=[0.05] * P))
    assert dict(action.tokens) == {"h1": 0.0, "h2": 0.25, "h3": 0.5, "h4": 0.75}
    uneven = [0.0] * 4 + [0.2] * 2 + [0.02] * 6 + [0.0] * 4
    (by_load,), _ = after(RingBalance(cut="load"), seen(0.0, [0.1, 0.0, 0.6, 0.1], ring=ring, zones="abab", loads=uneven))
    assert dict(by_load.tokens) == {"h1": 0.0, "h2": 0.25, "h3": 5 / 16, "h4": 0.75}, "one of both heavy partitions"
    (blind,), _ = after(RingBalance(), seen(0.0, [0.2, 0.0, 0.4, 0.2], ring=ring, zones="abab"))
    assert dict(blind.tokens) == {"h1": 0.0, "h2": 0.25, "h3": 0.5, "h4": 0.75}, "half, where nothing is known of loads"


@example(4, 3, [1, 4, 10, 10, 9])  # several as full: beside one of them the newcomer would have a neighbour of its own zone
@example(4, 3, [3, 1])
@given(each_zone=st.integers(2, 4), zones=st.integers(2, 3), lost=st.lists(st.integers(0, 11), min_size=1, max_size=6))
def test_neighbours_stay_in_distinct_zones_after_losses(each_zone, zones, lost):
    named = {f"h{number + 1}": "abc"[number % zones] for number in range(each_zone * zones)}
    ring, count = Ring.even(in_zones(named)), len(named)
    for number in lost:
        gone = f"h{number % count + 1}"
        without = ring.without(gone)
        loads = np.full(P, 0.01)
        cpu = [0.0 if host == gone else 0.01 * len(without.partitions(host, P)) for host in named]
        kinds = [replace(ONE, zone=zone) for zone in named.values()]
        (action,), _ = after(RingBalance(), seen(0.0, cpu, ring=without, kinds=kinds, loads=loads))
        ring = Ring(dict(action.tokens))
    round_it = [named[host] for host in (*ring.nodes, ring.nodes[0])]
    assert all(one != other for one, other in pairwise(round_it)), ring.tokens


def test_a_zone_that_holds_state_with_all_its_copies_is_named():
    apart, beside = Ring.even(("h1", "h2", "h3", "h4")), Ring.even(("h1", "h3", "h2", "h4"))
    for ring, replicas, said in ((apart, 1, 0), (beside, 1, 2), (beside, 0, 0), (beside, 2, 0)):
        _, plan = after(RingBalance(), seen(0.0, [0.4] * 4, ring=ring, zones="abab", replicas=replicas))
        assert sum("fault zone" in remark for remark in plan.remarks) == said, (ring.nodes, replicas)
    _, plan = after(RingBalance(), seen(0.0, [0.4] * 4, ring=beside, zones="abab", replicas=1))
    assert plan.remarks[0].startswith("fault zone a (h1, h3) holds some state with all its copies")


def test_even_cut_replaces_a_half_cut_that_would_not_help():
    # All of h1's load is in the upper half of its interval: half would only pass it on.
    loads = np.array([0.0] * 6 + [0.44, 0.44] + [0.0] * 8)
    ring = Ring({"h1": 0.0, "h2": 0.5})
    (action,), _ = after(RingBalance(), *lasting([0.9, 0.1], waits=3.0, ring=ring, loads=loads))
    assert dict(action.tokens)["h2"] == 7 / 16
    assert "become" in action.why


def skewed(loads, **more):
    """Rounds of four hosts, each as busy as its quarter of `loads` and a tenth of a core."""
    cpu = [0.1 + float(part.sum()) for part in np.split(np.asarray(loads), 4)]
    return lasting(cpu, **{"waits": 3.0, "loads": loads, **more})


def test_the_cut_by_load_evens_a_skew_in_one_change():
    loads = np.array([0.2] * 4 + [0.025] * 12)
    (halves,), _ = after(RingBalance(), *skewed(loads))
    assert [len(Ring(dict(halves.tokens)).partitions(host, P)) for host in ("h1", "h2", "h3", "h4")] == [2, 6, 4, 4]
    (action,), _ = after(RingBalance(cut="load"), *skewed(loads))
    ring = Ring(dict(action.tokens))
    taken = [float(loads[list(ring.partitions(host, P))].sum()) for host in ("h1", "h2", "h3", "h4")]
    assert max(taken) == pytest.approx(0.4), "two of the four partitions, which cannot be divided, on no host more"
    assert "2 hosts behind it take part" in action.why


def test_a_cut_waits_for_loads_that_agree_but_not_for_ever():
    loads = np.array([0.2] * 4 + [0.025] * 12)
    unsure = skewed(loads, errors=loads / 2)
    policy = RingBalance(patience=0.0, cut="load")
    actions, plan = after(policy, *unsure)
    assert (actions, plan.remarks) == ([], ())
    assert after(policy, *unsure[:2], *skewed(loads, errors=loads / 5)[2:3])[0] != []
    assert after(policy, *skewed(loads, errors=loads / 2, seconds=40.0))[0] != []
    assert after(RingBalance(patience=0.0), *unsure)[0] != [], "halves are not cut by loads"


def test_a_host_whose_loads_do_not_agree_holds_up_no_other_one():
    loads = np.array([0.2] * 4 + [0.02] * 4 + [0.19] * 4 + [0.02] * 4)
    errors = loads * ([0.5] * 4 + [0.05] * 12)
    (action,), _ = after(RingBalance(patience=0.0, cut="load"), *skewed(loads, errors=errors))
    assert action.why.startswith("h3 is overloaded, h4 is light")


def test_a_single_hot_key_is_named_and_causes_no_action():
    loads = np.array([0.85] + [0.001] * 15)
    actions, plan = after(RingBalance(), *lasting([0.9, 0.1, 0.1], waits=3.0, loads=loads))
    assert actions == []
    assert "state partition 0 of count keeps 0.85 of its 1 cores busy" in plan.remarks[0]
    actions, plan = after(RingBalance(), *lasting([0.9, 0.6, 0.6], waits=3.0, loads=loads))
    assert actions == []
    assert "cannot be divided" in plan.remarks[0]


def test_a_host_and_its_neighbour_that_are_both_light_become_one():
    rounds = lasting([0.1, 0.15, 0.6], 30.0)
    assert after(RingBalance(), *rounds)[0] == [DrainHost("h1")]
    assert after(RingBalance(), *lasting([0.3, 0.6, 0.3], 30.0))[0] == [DrainHost("h3")], "h1 is its neighbour"
    assert after(RingBalance(), *lasting([0.3, 0.6], 30.0))[0] == []


def test_no_host_goes_for_a_moment_of_calm():
    assert after(RingBalance(), *lasting([0.1, 0.1], 8.0))[0] == []
    assert after(RingBalance(), *lasting([0.1, 0.1], 30.0, waits=1.2))[0] == []
    assert after(RingBalance(), *lasting([0.1, 0.1], 30.0, min_hosts=2))[0] == []


def test_an_empty_host_that_drains_is_released():
    states = [HostState.RUNNING, HostState.DRAINING]
    assert ReleaseHost("h2") in after(RingBalance(), seen(0.0, [0.5, 0.0], ring=Ring({"h1": 0.0}), states=states))[0]


def test_equal_type_in_another_zone_than_neighbours_is_leased():
    types = [replace(ONE, name=f"one-{zone}", zone=zone) for zone in "abc"]
    rounds = lasting([0.9, 0.9], waits=3.0, types=types, zones="ab")
    assert after(RingBalance(), *rounds)[0] == [LeaseHost("h3", "one-c")]


def test_what_is_unknown_is_named_and_nothing_is_decided():
    actions, plan = after(RingBalance(), *lasting([math.nan, 0.2, 0.2], waits=3.0))
    assert actions == []
    assert {(each.metric, each.row) for each in plan.unknown} == {(Metric.CPU, "h1")}
    actions, plan = after(RingBalance(), *lasting([0.9, 0.2, 0.2], waits=math.nan))
    assert actions == []
    assert {each.metric for each in plan.unknown} == {Metric.BACKLOG}


def test_it_says_when_hosts_cannot_all_hold_state():
    _, plan = after(RingBalance(), seen(0.0, [0.1] * 20, ring={}))
    assert plan.remarks == (
        (
            "count has 16 state partitions for 20 hosts: 4 of them hold none of its state; give more (state_partitions) or "
            "fewer hosts"
        ),
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cpu_low": 0.8}, "cpu_low is 0.8 and cpu_high 0.7; they must be 0 < cpu_low < cpu_high <= 1"),
        ({"cpu_high": 1.2}, "cpu_low is 0.6 and cpu_high 1.2; they must be 0 < cpu_low < cpu_high <= 1"),
        ({"queue_high": 1.0, "queue_low": 2.0}, "queue_low is 2 s; it must be at most queue_high, 1 s"),
        ({"patience": -1.0}, "patience is -1 s; it must be 0 s or more"),
        ({"gain": 1.0}, "gain is 1; it must be 0 or more and below 1"),
        ({"cut": "third"}, "cut is 'third'; it must be 'half' or 'load'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_in_one_sentence(settings, sentence):
    with pytest.raises(InputError) as refused:
        RingBalance(**settings)
    assert str(refused.value) == sentence


def test_it_says_for_what_it_can_do_nothing():
    flow = Dataflow("stateless")
    flow.source(None).flat_map(str.split, returns="word string").sink(None)
    assert "the dataflow has none" in RingBalance().unsupported_reason(Context(lay_out(flow.graph)))
    assert "simulate the dataflow fused" in RingBalance().unsupported_reason(Context(lay_out(words().graph, chained=False)))
    assert RingBalance().unsupported_reason(Context(LAYOUT)) is None
    assert RingBalance(queue_low=2.0).unsupported_reason(Context(LAYOUT, target_latency=1.0)) == (
        "queue_low is 2 s; it must be at most queue_high, half of the target latency: 0.5 s"
    )
    assert isinstance(RingBalance().plan(seen(0.0, [0.1]), None).memory, RingMemory)


def test_what_a_partition_takes_counts_by_the_speed_of_its_host():
    """A slow host is busy for twice as long with the same: the fast one has room for it."""
    slow, fast = replace(ONE, name="slow", speed=0.5), replace(ONE, name="fast", speed=1.0)
    given = seen(0.0, [0.8, 0.4], loads=[0.1] * 8 + [0.05] * 8, kinds=[slow, fast], types=(slow, fast))
    load = RingLoad(given, 0.7)
    assert load.loads("count") == pytest.approx([0.05] * 16)
    arc = load.arc("count", given.rings["count"], ("h1", "h2"))
    assert arc.levels(arc.owned) == pytest.approx([0.8, 0.4])


def test_batches_without_a_pause_mean_a_full_query():
    rounds = lasting([0.6, 0.55], batch=1.6, latency=2.5)
    leases, _ = after(RingBalance(), *rounds)
    # Of 1.6 s 0.64 are spent between tasks: five hosts shorten the rest so far that a batch takes 0.9 s.
    assert [type(each) for each in leases] == [LeaseHost] * 3
    assert after(RingBalance(), *lasting([0.6, 0.55], batch=0.7, latency=1.1))[0] == []
    assert after(RingBalance(), *lasting([0.6, 0.55], batch=1.6, latency=4.5))[0] == [], "with pauses there is room"


def test_a_host_stays_that_keeps_batches_short():
    calm = lasting([0.2] * 3, 40.0, batch=0.7, latency=1.0)
    assert after(RingBalance(), *calm)[0] == []
    assert isinstance(after(RingBalance(), *lasting([0.2] * 3, 40.0, batch=0.5, latency=1.0))[0][0], DrainHost)


WIDE = replace(ONE, name="wide", cores=8.0, slots=8)


@pytest.mark.parametrize(
    ("cpu", "given", "remark"),
    [
        (
            [0.95, 0.95],
            {"waits": 3.0, "loads": [0.9] * P, "kinds": [WIDE] * 2, "types": (WIDE,)},
            "give more than 16 state",
        ),
        ([0.9, 0.9], {"waits": 3.0, "max_hosts": 2}, "max_hosts: at most 2 hosts may be leased, and h1, h2 overloaded"),
        ([0.2, 0.25], {"batch": 1.6, "latency": 2.5}, "no number of hosts would shorten these enough"),
    ],
    ids=["partitions", "max_hosts", "batches"],
)
def test_where_no_host_may_help_none_is_leased_and_a_remark_says_why(cpu, given, remark):
    actions, plan = after(RingBalance(), *lasting(cpu, **given))
    assert actions == []
    assert any(remark in each for each in plan.remarks)


def test_with_known_loads_a_neighbour_need_not_be_light():
    loads = np.array([0.2] * 6 + [0.1] * 10)
    cpu = [0.9, 0.55, 0.55]  # none is light, below 0.35, and all together are not too much for these hosts
    rounds = lasting(cpu, waits=3.0, loads=loads)
    ((action,), _), (half, _) = (after(RingBalance(cut=cut), *rounds) for cut in ("load", "half"))
    assert isinstance(action, SetTokens)
    ring = Ring(dict(action.tokens))
    assert len(ring.partitions("h1", P)) < 6
    assert "h1 is overloaded, h2 takes a part" in action.why
    assert [type(each) for each in half] == [LeaseHost]
    unknown, _ = after(RingBalance(cut="load"), *lasting(cpu, waits=3.0))
    assert [type(each) for each in unknown] == [LeaseHost]


@pytest.mark.parametrize("hosts", [2, 12])
def test_stateless_work_is_a_reason_for_more_hosts(hosts):
    late = lasting([1.0] * hosts, waits=30.0, loads=np.full(P, 0.001), rate=1000.0, done=100.0)
    actions, plan = after(RingBalance(), *late)
    assert actions, plan.remarks
    assert {type(action) for action in actions} == {LeaseHost}
    assert plan.remarks == ()


@pytest.mark.parametrize("odd", ["h2", "h3", "h4"])
def test_what_hosts_do_beside_state_is_not_told_by_one_measurement(odd):
    hosts = ("h1", "h2", "h3", "h4")
    ring = Ring.even(hosts)
    loads = np.array([0.18] * 4 + [0.05] * 12)

    def cut(noise):
        run, changes = OneRun(RingBalance(cut="load", cpu_low=0.6)), []
        for time in np.arange(0.0, 80.0, 2.0).tolist():
            other = {odd: 0.2 + noise} if time > 70.0 else {}
            cpu = [other.get(host, 0.2) + float(loads[list(ring.partitions(host, P))].sum()) for host in hosts]
            plan = run.plan(seen(time, cpu, ring=ring, loads=loads, waits=3.0 if time > 70.0 else 0.0))
            changes += [action for action in plan.actions if isinstance(action, SetTokens)]
        return changes[0].tokens

    assert cut(0.1) == cut(0.0), "a measurement that is off by half does not change where state goes"


def test_records_that_are_late_are_a_queue_however_short_it_is():
    """A queue that grows by a hair is half of the target only after minutes, and its records late before that."""
    almost = {"waits": 0.9, "batch": 0.8}
    leases, _ = after(RingBalance(), *lasting([0.9, 0.88], latency=2.1, **almost))
    assert [type(each) for each in leases] == [LeaseHost]
    assert after(RingBalance(), *lasting([0.9, 0.88], latency=1.9, **almost))[0] == []
    assert after(RingBalance(), *lasting([0.6, 0.5], latency=2.1, **almost))[0] == [], "hosts have room"
