"""The policy against the simulated plant and against observations: what its managers' plan becomes as actions."""

import math
from dataclasses import replace

import numpy as np
import pytest

from elastream.core.action import CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetParallelism
from elastream.core.decision import Unknown
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Context, MicroBatch, Observation
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.policies.e2df.policy import E2df
from elastream.policies.e2df.snapshot import snapshot_of
from support.policy_run import OneRun

SMALL = HostType("small", cores=1.0, slots=1)
GRAPH = Graph(
    "wc",
    (
        Operator("lines", Kind.SOURCE),
        Operator("split", Kind.TRANSFORM, (Alternate("split"),)),
        Operator("count", Kind.KEYED, (Alternate("count"),), key=("word",)),
        Operator("out", Kind.SINK, cores=0.0),
    ),
    (Edge("lines", "split"), Edge("split", "count", Delivery.KEYED), Edge("count", "out")),
)
TWO_KEYED = replace(
    GRAPH,
    operators=tuple(replace(o, kind=Kind.KEYED, key=("word",)) if o.name == "split" else o for o in GRAPH.operators),
    edges=(Edge("lines", "split", Delivery.KEYED), *GRAPH.edges[1:]),
)
ROWS = {name: row for row, name in enumerate(GRAPH.by_name)}


def observed(  # noqa: PLR0913
    hosts: dict[str, float],
    tasks: list[tuple[str, str, float]],
    *,
    time: float = 0.0,
    states: dict[str, HostState] | None = None,
    kind: HostType = SMALL,
    scalable: frozenset[str] = frozenset({"split", "count"}),
    busy: dict[str, float] | None = None,
    parallelism: dict[str, float] | None = None,
    latency: float = math.nan,
    max_hosts: int = 100,
) -> Observation:
    """hosts: name -> cpu. tasks: (operator, host, utilisation)."""
    leases = {}
    for name in hosts:
        lease = Lease(name, kind, 0.0)
        for state in (HostState.STARTING, HostState.RUNNING):
            lease = lease.to(state, 0.0)
        for state in filter(None, [(states or {}).get(name)]):
            lease = Lease(name, kind, 0.0) if state is HostState.REQUESTED else lease.to(state, 0.0)
        leases[name] = lease
    seen: dict[str, int] = {}
    index = []
    for operator, _, _ in tasks:
        index.append(seen.get(operator, 0))
        seen[operator] = index[-1] + 1
    columns = {Metric.BUSY_CORES: busy or {}, Metric.PARALLELISM: parallelism or {}, Metric.UTILISATION: busy or {}}
    return Observation(
        time,
        Context(lay_out(GRAPH), {kind.name: kind}, 1.0, max_hosts, scalable=scalable),
        Frame(tuple(ROWS), {m: [values.get(name, math.nan) for name in ROWS] for m, values in columns.items()}),
        application=Frame(("wc",), {Metric.LATENCY: [latency]}),
        hosts=Frame(tuple(hosts), {Metric.CPU: list(hosts.values())}),
        tasks=TaskFrame(
            [ROWS[operator] for operator, _, _ in tasks],
            index,
            [list(hosts).index(host) for _, host, _ in tasks],
            tuple(ROWS),
            {Metric.UTILISATION: [used for _, _, used in tasks]},
        ),
        leases=leases,
        next_host=len(hosts) + 1,
    )


def test_overloaded_instance_gets_a_second_and_the_spare_host_is_replaced() -> None:
    seen = observed({"h1": 0.9, "h2": 0.2, "h3": 0.0}, [("split", "h1", 0.9), ("count", "h2", 0.2)])
    plan = E2df(spare=1, initial=2).plan(seen).actions
    assert SetParallelism("split", 2, on=("h3",)) in plan
    later = observed(
        {"h1": 0.5, "h2": 0.2, "h3": 0.5}, [("split", "h1", 0.5), ("split", "h3", 0.5), ("count", "h2", 0.2)], time=60.0
    )
    assert E2df(spare=1, initial=2).plan(later).actions == (LeaseHost("h4", "small"),)


def test_measured_distance_of_a_region_precedes_the_declared_one() -> None:
    seen = observed(dict.fromkeys(("h1", "h2", "h3"), 0.5), [("split", "h1", 0.5), ("count", "h2", 0.5)])
    west = replace(SMALL, name="far", region="west")
    links = Frame(("h1>h2", "h1>h3", "h2>h1", "h2>h3"), {Metric.NETWORK_LATENCY: [0.001, 0.04, math.nan, 0.06]})
    seen = replace(
        seen,
        context=replace(seen.context, host_types={"small": SMALL, "far": west}),
        leases={**seen.leases, "h3": replace(seen.leases["h3"], type=west)},
        links=links,
    )
    policy = E2df(latency={"west": 0.001, "local": 0.002})
    assert {name: facts.latency for name, facts in policy.region_facts(seen).items()} == {"local": 0.001, "west": 0.05}
    declared = policy.region_facts(replace(seen, links=Frame()))
    assert {name: facts.latency for name, facts in declared.items()} == {"local": 0.002, "west": 0.001}


def test_the_replica_that_goes_is_named() -> None:
    seen = observed({"h1": 0.1, "h2": 0.1}, [("split", "h1", 0.1), ("split", "h2", 0.1)])
    (action,) = E2df(infrastructure=False).plan(seen).actions
    assert action in (SetParallelism("split", 1, without=(TaskId("split", k),)) for k in range(2))


def test_nothing_is_planned_between_rounds_and_hosts_have_their_own() -> None:
    policy = OneRun(E2df(spare=1, initial=1))
    full = [("split", "h1", 0.5)]
    assert policy.plan(observed({"h1": 0.5}, full, time=5.0)).actions == (LeaseHost("h2", "small"),)
    busy = [("split", "h1", 0.5), ("count", "h2", 0.5)]
    assert policy.plan(observed({"h1": 0.5, "h2": 0.5}, busy, time=20.0)).actions == ()
    assert policy.plan(observed({"h1": 0.5, "h2": 0.5}, busy, time=35.0)).actions == ()
    assert policy.plan(observed({"h1": 0.5, "h2": 0.5}, busy, time=65.0)).actions == (LeaseHost("h3", "small"),)


def test_an_empty_host_beyond_the_spare_ones_is_released() -> None:
    seen = observed({"h1": 0.5, "h2": 0.0, "h3": 0.0}, [("split", "h1", 0.5)])
    assert E2df(spare=1, initial=1).plan(seen).actions == (ReleaseHost("h3"),)
    assert E2df(spare=1, initial=1, infrastructure=False).plan(seen).actions == ()


BIG = HostType("big", cores=2.0, slots=2)
IDLE = {"h1": 0.3, "h2": 0.05, "h3": 0.3}
TASKS = [("split", "h1", 0.6), ("count", "h2", 0.1), ("count", "h3", 0.6)]
"""On big hosts: h2 is hardly used."""


def test_a_host_hardly_used_is_left_drained_and_released() -> None:
    policy = OneRun(E2df(spare=1, initial=1))
    assert policy.plan(observed(IDLE, TASKS, kind=BIG)).actions == ()  # its application is asked
    moved, drained = policy.plan(observed(IDLE, TASKS, kind=BIG, time=30.0)).actions
    assert (moved.task, drained) == (TaskId("count", 0), DrainHost("h2"))
    assert moved.host in ("h1", "h3")
    left = [("split", "h1", 0.6), ("count", moved.host, 0.1), ("count", "h3", 0.6)]
    now = observed(IDLE, left, kind=BIG, time=60.0, states={"h2": HostState.DRAINING})
    assert policy.plan(now).actions == (ReleaseHost("h2"),)


def test_a_drain_that_is_not_over_in_time_is_cancelled() -> None:
    policy = OneRun(E2df(spare=1, initial=1, patience=60.0))
    policy.plan(observed(IDLE, TASKS, kind=BIG))
    policy.plan(observed(IDLE, TASKS, kind=BIG, time=30.0))
    busy = {"h1": 0.3, "h2": 0.5, "h3": 0.3}  # the move came to nothing
    stuck = observed(busy, TASKS, kind=BIG, time=60.0, states={"h2": HostState.DRAINING})
    assert CancelDrain("h2") in policy.policy.plan(stuck, policy.memory).actions
    late = "infrastructure manager: wc had not left it within 60 s"
    assert refusals(policy, stuck) == [("drain h2", "region manager of local", late)]


def test_a_host_that_is_leased_and_on_no_order_is_released() -> None:
    policy = OneRun(E2df(spare=1, initial=1))
    full = {"h1": 0.5, "h2": 0.0}
    assert policy.plan(observed(full, [("split", "h1", 0.5)])).actions == ()
    stray = {"h1": 0.5, "h2": 0.0, "h9": 0.0}
    assert ReleaseHost("h9") in policy.plan(observed(stray, [("split", "h1", 0.5)], time=60.0)).actions


def test_host_limit_holds_with_hosts_that_shut_down() -> None:
    states = {"h2": HostState.RELEASING}
    seen = observed({"h1": 0.5, "h2": 0.0}, [("split", "h1", 0.5)], states=states, max_hosts=3)
    leases = [a for a in E2df(spare=5, initial=1).plan(seen).actions if isinstance(a, LeaseHost)]
    assert len(leases) == 1


def test_a_token_bucket_limits_what_one_round_does() -> None:
    hosts = {f"h{k}": 0.9 if k < 3 else 0.0 for k in range(1, 9)}
    seen = observed(hosts, [("split", "h1", 0.9), ("count", "h2", 0.9)])
    assert len(E2df(infrastructure=False).plan(seen).actions) == 2
    assert len(E2df(infrastructure=False, tokens=1).plan(seen).actions) == 1


def test_replicas_are_first_spread_over_the_first_hosts() -> None:
    hosts = {"h1": 0.5, "h2": 0.0, "h3": 0.0}
    seen = observed(hosts, [("split", "h1", 0.5), ("count", "h1", 0.5)], kind=BIG)
    assert E2df(initial=2, infrastructure=False).plan(seen).actions == (MoveTask(TaskId("count", 0), "h2"),)


def test_replicas_on_more_than_the_first_hosts_are_brought_together() -> None:
    plan = E2df(infrastructure=False, initial=1).plan(spark_like({"h1": 2, "h2": 2, "h3": 2}, 0.5)).actions
    assert [(type(action), action.host) for action in plan] == [(MoveTask, "h1")] * 4


def test_the_first_placement_waits_until_state_partitions_are_reported() -> None:
    policy = OneRun(E2df(infrastructure=False, initial=1))
    before = spark_like({"h1": 0, "h2": 0, "h3": 0}, math.nan)  # before the first batch no partition has a place
    assert policy.plan(before).actions == ()
    plan = policy.plan(spark_like({"h1": 2, "h2": 2, "h3": 2}, 0.5, time=30.0)).actions
    assert [(type(action), action.host) for action in plan] == [(MoveTask, "h1")] * 4


def test_the_first_placement_waits_for_its_hosts_and_asks_for_them() -> None:
    seen = observed({"h1": 0.5}, [("split", "h1", 0.5), ("count", "h1", 0.4)], kind=BIG)
    plan = E2df(spare=0, initial=4).plan(seen).actions
    assert [type(action) for action in plan] == [LeaseHost]  # two free slots, until the first placement, mean one host


# -- what managers refuse each other ---------------------------------------------------------------------------------------


def refusals(policy: E2df | OneRun, seen: Observation) -> list[tuple[str, str, str]]:
    return [(p.action.describe(), p.by, p.refused) for p in policy.plan(seen).refused]


def test_refusals_of_the_application_manager_are_reported_with_reasons() -> None:
    crowded = observed({"h1": 0.9, "h2": 0.9, "h3": 0.0}, [("split", "h1", 0.9), ("count", "h2", 0.95)])
    taken = "application manager: the host was just given to another replica"
    assert refusals(E2df(infrastructure=False), crowded) == [("split x 2", "operator manager of split", taken)]
    idle = observed({"h1": 0.1, "h2": 0.1}, [("split", "h1", 0.1), ("split", "h2", 0.1)], latency=1.5)
    late = "application manager: the response time is over its target"
    assert refusals(E2df(infrastructure=False), idle) == [("split x 1", "operator manager of split", late)]
    hosts = {f"h{k}": 0.9 if k < 3 else 0.0 for k in range(1, 9)}
    two = observed(hosts, [("split", "h1", 0.9), ("count", "h2", 0.95)])
    spent = "application manager: as much was reconfigured lately as is allowed"
    assert refusals(E2df(infrastructure=False, tokens=1), two) == [("split x 2", "operator manager of split", spent)]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"max_price": 0.5}, "a host in local costs 1 a second, more than 0.5"),
        ({"max_latency": 0.01, "latency": {"local": 0.05}}, "local is 0.05 s away, more than 0.01 s"),
        ({"capacity": {"local": 1}}, "local has as many hosts as it can have, 1"),
        ({}, "at most 1 host may be leased"),
    ],
)
def test_a_region_that_is_dear_far_or_full_gets_nothing(given: dict[str, object], reason: str) -> None:
    dear = HostType("small", cores=1.0, slots=1, price=60.0, billing=Billing(60.0))
    seen = observed({"h1": 0.5}, [("split", "h1", 0.5)], kind=dear, max_hosts=100 if given else 1)
    policy = E2df(spare=1, initial=1, **given)
    assert refusals(policy, seen) == [("lease h2 (small)", "region manager of local", f"infrastructure manager: {reason}")]
    assert policy.plan(seen).actions == ()


def test_an_application_that_will_not_leave_a_host_is_reported() -> None:
    policy = OneRun(E2df(spare=1, initial=1))
    seen = observed(IDLE, TASKS, kind=BIG, latency=1.1)
    late = "application manager of wc: its response time is over its target"
    assert refusals(policy, seen) == [("drain h2", "region manager of local", late)]
    assert refusals(policy, observed(IDLE, TASKS, kind=BIG, time=5.0)) == [], "once, in its round"
    for time in (30.0, 60.0, 90.0):
        assert policy.plan(observed(IDLE, TASKS, kind=BIG, time=time, latency=1.1)).actions == ()


def test_an_operator_without_a_host_to_grow_to_is_remarked() -> None:
    full = observed({"h1": 0.9}, [("split", "h1", 0.9)])
    assert E2df(infrastructure=False).plan(full).remarks == (
        "split would have a replica more, and no host of its region has a free slot",
    )


def test_a_host_to_be_left_without_room_elsewhere_is_remarked() -> None:
    policy = OneRun(E2df(spare=1, initial=1))
    policy.plan(observed(IDLE, TASKS, kind=BIG))
    full = observed(IDLE, [*TASKS, ("split", "h1", 0.6), ("count", "h3", 0.6)], kind=BIG, time=30.0)
    plan = policy.plan(full)
    assert not any(isinstance(action, MoveTask) for action in plan.actions)
    assert plan.remarks == ("h2 is to be left, and there is no room elsewhere for what it holds",)


def test_hardly_used_region_is_consolidated_if_configured() -> None:
    hosts = {"h1": 0.2, "h2": 0.15, "h3": 0.2}
    tasks = [("split", "h1", 0.4), ("count", "h2", 0.3), ("count", "h3", 0.4)]
    for below, moved in ((None, 0), (0.25, 1)):
        policy = OneRun(E2df(spare=1, initial=1, consolidate_below=below))
        policy.plan(observed(hosts, tasks, kind=BIG))
        plan = policy.plan(observed(hosts, tasks, kind=BIG, time=30.0)).actions
        assert sum(isinstance(action, MoveTask) for action in plan) == moved


# -- state partitions, as on Spark: tasks whose number is fixed ----------------------------------------------------------

FIXED = frozenset({"lines"})


def spark_like(counts: dict[str, int], busy: float, time: float = 0.0) -> Observation:
    tasks = [("count", host, math.nan) for host, number in counts.items() for _ in range(number)]
    return observed(
        dict.fromkeys(counts, 0.5), tasks, scalable=FIXED, busy={"count": busy}, parallelism={"lines": 2}, time=time
    )


TWO_TASKS = [("count", "h1", math.nan), ("count", "h2", math.nan)]


def test_all_that_a_host_holds_of_an_operator_is_one_replica() -> None:
    replicas = snapshot_of(spark_like({"h1": 6, "h2": 2}, 0.8)).instances
    assert replicas.utilisation[:2] == pytest.approx([0.6, 0.2])
    assert replicas.host[:2].tolist() == [0, 1]


def test_stages_on_the_same_slots_are_as_used_as_all_turns_together() -> None:
    busy = {"lines": 0.2, "split": 0.2, "count": 1.0}  # two instances at 0.2 of a core, two hosts at 0.5
    seen = observed({"h1": 0.5, "h2": 0.5}, TWO_TASKS, scalable=FIXED, busy=busy, parallelism={"lines": 2})
    assert snapshot_of(seen).instances.utilisation.tolist() == pytest.approx([0.7, 0.7, 0.7, 0.7])
    tasks = [("split", "h1", math.nan), ("count", "h1", math.nan)]
    seen = observed({"h1": 0.8}, tasks, scalable=frozenset(), busy={"split": 0.3, "count": 0.5})
    both = replace(seen, context=replace(seen.context, layout=lay_out(TWO_KEYED)))
    assert snapshot_of(both).instances.utilisation.tolist() == pytest.approx([0.8, 0.8]), "where none floats"
    slow = replace(SMALL, speed=0.5)
    seen = observed({"h1": 0.6}, [], kind=slow, scalable=FIXED, busy={"lines": 0.6}, parallelism={"lines": 1})
    assert snapshot_of(seen).instances.utilisation.tolist() == pytest.approx([0.6]), "in cores of its slots' speed"


def test_a_scale_out_moves_an_even_share_of_the_tasks_to_the_new_host() -> None:
    plan = E2df(infrastructure=False, initial=1).plan(spark_like({"h1": 8, "h2": 0}, 0.9)).actions
    assert [action.host for action in plan] == ["h2"] * 4
    assert len({action.task for action in plan}) == 4


def test_with_one_task_a_host_only_the_task_of_a_slower_host_moves() -> None:
    idle = replace(SMALL, name="quick", speed=4.0)
    seen = spark_like({"h1": 1, "h2": 1, "h3": 0}, 1.8)
    assert E2df(infrastructure=False, initial=2).plan(seen).actions == ()
    quick = replace(seen.leases["h3"], type=idle)
    seen = replace(seen, leases={**seen.leases, "h3": quick})
    (action,) = E2df(infrastructure=False, initial=2).plan(seen).actions
    assert action == MoveTask(TaskId("count", 0), "h3")


def test_of_stages_that_take_turns_those_with_a_long_turn_grow() -> None:
    busy = {"lines": 0.2, "count": 1.4}  # together 0.8: two instances at 0.1 of a core, two hosts at 0.7
    hosts = {"h1": 0.8, "h2": 0.8, "h3": 0.0, "h4": 0.0}
    seen = observed(hosts, TWO_TASKS, scalable=FIXED, busy=busy, parallelism={"lines": 2})
    assert snapshot_of(seen).instances.above(0.7).tolist() == [True, True, False, False]
    late = replace(seen, operators=waiting(seen, 500.0), batches=(MicroBatch("lines", 0.0, 1.0, 100.0),))
    assert snapshot_of(late).instances.above(0.7).all()


def test_a_scale_in_moves_all_tasks_of_the_replica_to_the_others() -> None:
    plan = E2df(infrastructure=False, initial=2).plan(spark_like({"h1": 4, "h2": 4}, 0.2)).actions
    assert len({action.host for action in plan}) == 1
    assert len({action.task for action in plan}) == 4


def test_fixed_tasks_stay_if_another_host_would_have_to_grow_again() -> None:
    policy, held = E2df(infrastructure=False, initial=8), dict.fromkeys([f"h{n}" for n in range(8)], 1)
    assert policy.plan(spark_like(held, 8 * 0.34)).actions != ()  # one of the others is then used at 68 %
    assert policy.plan(spark_like(held, 8 * 0.40)).actions == ()


def test_instances_that_are_placed_nowhere_are_as_used_as_their_stage() -> None:
    hosts = {"h1": 0.9, "h2": 0.9, "h3": 0.0}
    seen = observed(hosts, [], scalable=FIXED, busy={"lines": 1.0, "split": 0.8}, parallelism={"lines": 2})
    assert snapshot_of(seen).instances.utilisation.tolist() == pytest.approx([0.9, 0.9])
    assert E2df(infrastructure=False).plan(seen).actions == (SetParallelism("lines", 3),)


@pytest.mark.parametrize(("now", "plan"), [(2, ()), (3, (SetParallelism("lines", 2),))])
def test_instances_that_are_placed_nowhere_are_never_more_than_slots(now: int, plan: tuple[SetParallelism, ...]) -> None:
    seen = observed({"h1": 1.0, "h2": 1.0}, [], scalable=FIXED, busy={"lines": 2.0}, parallelism={"lines": now})
    assert E2df(infrastructure=False).plan(seen).actions == plan


def test_host_without_declared_slots_holds_what_fits_its_cores() -> None:
    # As a price list gives them: without this no slot was ever lacking, and no host was ever leased.
    wide = replace(SMALL, cores=2.0, slots=10_000)
    seen = observed({"h1": 0.9}, [("split", "h1", 0.9)], kind=wide)
    assert snapshot_of(seen).hosts.slots.tolist() == [2]


def test_floating_instances_use_spare_slots_and_block_no_stateful_task() -> None:
    found = snapshot_of(spark_like({"h1": 8, "h2": 0}, 0.9))
    assert found.spare.tolist() == [0, 0]
    assert found.free.tolist() == [0, 1]


def test_what_an_operator_lacks_to_be_sized_is_named() -> None:
    seen = observed({"h1": 0.9}, [("split", "h1", math.nan)], scalable=FIXED | {"split"})
    assert E2df().plan(seen).unknown == (
        Unknown(Metric.PARALLELISM, Rows.OPERATOR, "lines"),
        Unknown(Metric.UTILISATION, Rows.TASK, "split#0"),
    )


def test_what_is_not_known_makes_no_plan() -> None:
    seen = observed({"h1": math.nan, "h2": math.nan}, [("split", "h1", math.nan), ("split", "h2", math.nan)])
    assert E2df(infrastructure=False, initial=2).plan(seen).actions == ()
    assert np.isnan(snapshot_of(seen).applications.response).all()


# -- where hosts are shared, and decided on elsewhere ----------------------------------------------------------------------

SHARED = E2df(infrastructure="shared", initial=1, infrastructure_period=60)
FULL = [("split", "h1", 0.9), ("count", "h2", 0.1)]
"""The one replica of `split` is used too much, and no host has a free slot."""


def noted(seen: Observation, host: str, note: str) -> Observation:
    """What its provider says of a host."""
    return replace(seen, leases={**seen.leases, host: replace(seen.leases[host], note=note)})


def test_operator_without_a_slot_requests_one_host_at_a_time() -> None:
    seen = replace(observed({"h1": 0.9, "h2": 0.1}, FULL), next_host=3)
    assert [action.describe() for action in SHARED.plan(seen).actions] == ["lease h3 (small)"]
    waiting = observed({"h1": 0.9, "h2": 0.1, "h3": 0.0}, FULL, states={"h3": HostState.REQUESTED})
    assert SHARED.plan(waiting).actions == ()


def test_refusal_of_the_arbiter_is_recorded_with_its_reason() -> None:
    seen = observed({"h1": 0.9, "h2": 0.1, "h3": 0.0}, FULL, states={"h3": HostState.REQUESTED})
    (refused,) = SHARED.plan(noted(seen, "h3", "it waits until 'demo' grants a machine: east has all 2 hosts")).refused
    assert (refused.action, refused.by) == (LeaseHost("h3", "small", "local"), "application manager")
    assert refused.refused == "infrastructure manager: it waits until 'demo' grants a machine: east has all 2 hosts"


def test_only_a_refused_request_is_repeated_in_another_region() -> None:
    far = replace(SMALL, name="far", region="far")
    seen = observed({"h1": 0.9, "h2": 0.1, "h3": 0.0}, FULL, states={"h3": HostState.REQUESTED})
    seen = replace(seen, context=replace(seen.context, host_types={SMALL.name: SMALL, far.name: far}))
    waits = noted(seen, "h3", "it waits: for room")
    assert SHARED.plan(waits).actions == ()
    refused = replace(waits, leases={**waits.leases, "h3": replace(waits.leases["h3"], refused=True)})
    assert [action.describe() for action in SHARED.plan(refused).actions] == ["lease h4 (far)"]


def test_who_decides_on_hosts_is_one_of_three() -> None:
    with pytest.raises(InputError, match="e2df: infrastructure is 'both': it must be true, false or 'shared'"):
        E2df(infrastructure="both")


def test_a_recall_is_remarked_with_its_reason() -> None:
    seen = noted(observed({"h1": 0.5, "h2": 0.1}, FULL), "h2", "orders is entitled to 2 of 3")
    assert "h2 is recalled: orders is entitled to 2 of 3" in SHARED.plan(seen).remarks


def test_empty_hosts_are_given_back_after_a_while() -> None:
    tasks = [("split", "h1", 0.5), ("count", "h2", 0.5)]
    young = observed({"h1": 0.5, "h2": 0.5, "h3": 0.0}, tasks, time=59.0)
    assert SHARED.plan(young).actions == ()
    old = observed({"h1": 0.5, "h2": 0.5, "h3": 0.0}, tasks, time=60.0)
    assert [action.describe() for action in SHARED.plan(old).actions] == ["release h3"]


def test_with_shared_hosts_nothing_is_drained_and_no_spare_is_leased() -> None:
    calm = [("split", "h1", 0.05), ("count", "h2", 0.05)]
    seen = observed({"h1": 0.05, "h2": 0.05}, calm, time=600.0)
    assert SHARED.plan(seen).actions == ()


def test_instances_that_float_take_as_many_slots_as_they_are() -> None:
    # Rounded up on each host, two instances would fill eight hosts of one slot, and hosts would be leased without end.
    hosts = dict.fromkeys([f"h{n}" for n in range(1, 9)], 0.1)
    seen = observed(hosts, [], scalable=FIXED, busy={"lines": 0.1}, parallelism={"lines": 2})
    taken = snapshot_of(seen).hosts.floating
    assert taken is not None
    assert (taken.sum(), taken.max()) == (2, 1)
    tasks = [("count", "h8", math.nan)]
    seen = observed(hosts, tasks, scalable=FIXED, busy={"lines": 0.1, "count": 0.1}, parallelism={"lines": 2})
    assert snapshot_of(seen).spare.tolist() == [0, 1, 1, 1, 1, 1, 1, 0], "with tasks with state they take turns"


def waiting(seen: Observation, records: float) -> Frame:
    """Its operators, with so many records waiting at the source."""
    known = {metric: seen.operators.column(metric) for metric in seen.operators.metrics}
    return Frame(seen.operators.ids, {**known, Metric.BACKLOG: [records, math.nan, math.nan, math.nan]})


def test_a_query_in_which_micro_batches_wait_is_never_idle() -> None:
    seen = observed({"h1": 0.6}, [], scalable=FIXED, busy={"lines": 0.6}, parallelism={"lines": 1})
    for records, used in ((400.0, 0.6), (100.0, 1.0)):
        late = replace(seen, operators=waiting(seen, 500.0), batches=(MicroBatch("lines", 0.0, 1.0, records),))
        assert snapshot_of(late).instances.utilisation.tolist() == pytest.approx([used])
