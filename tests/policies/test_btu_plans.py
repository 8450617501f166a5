"""What the BTU-based policy asks for: observations in, actions out."""

import pytest

from elastream.core.action import CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, RenewHost, SetParallelism
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.task_id import TaskId
from elastream.policies.btu import Btu
from support.visp_observations import lease, observe, operator

LATE = {Metric.DURATION: 2.0, Metric.BACKLOG: 80.0}
IN_TIME = {Metric.DURATION: 0.5, Metric.BACKLOG: 5.0}
IDLE = {Metric.DURATION: 0.5, Metric.BACKLOG: 0.0}


def plan(*args, policy=None, **kwargs):
    return list((policy or Btu()).plan(observe(*args, **kwargs)).actions)


@pytest.mark.parametrize(
    ("metrics", "earlier", "scaled"),
    [
        ({Metric.DURATION: 0.5, Metric.BACKLOG: 5.0}, [], []),
        (LATE, [], [SetParallelism("a", 2, on=("h1",))]),
        # A rising trend is enough.
        (LATE | {Metric.DURATION: 0.9}, [{"a": 0.3}, {"a": 0.5}, {"a": 0.7}], [SetParallelism("a", 2, on=("h1",))]),
    ],
)
def test_a_late_operator_gets_one_more_instance_where_there_is_room(metrics, earlier, scaled):
    assert plan([operator("a")], {"h1": ["a"]}, metrics={"a": metrics}, earlier=earlier) == scaled


def test_a_host_is_leased_when_none_fits_nor_can_be_given_up():
    operators = [operator("a", cores=2), operator("b", cores=2)]
    assert plan(operators, {"h1": ["a", "b"]}, metrics={"a": LATE, "b": IN_TIME}) == [
        LeaseHost("h2", "docker"),
        SetParallelism("a", 2, on=("h2",)),
    ]


def test_another_operator_makes_room_before_a_host_is_leased():
    operators = [operator("a", cores=2), operator("b", cores=1)]
    assert plan(operators, {"h1": ["a", "b", "b"]}, metrics={"a": LATE, "b": IDLE}, time=60) == [
        LeaseHost("h2", "docker"),  # one core of b is not room for two of a
        SetParallelism("a", 2, on=("h2",)),
    ]
    # On h2 the end of a b leaves a better balance of cores and memory for the new a than on h1.
    assert plan(operators, {"h1": ["a", "b"], "h2": ["b", "b", "b"]}, metrics={"a": LATE, "b": IDLE}) == [
        SetParallelism("b", 3, without=(TaskId("b", 1),)),
        SetParallelism("a", 2, on=("h2",)),
    ]


def test_two_late_operators_share_a_new_host_or_one_on_its_way():
    operators = [operator("a", cores=2), operator("b", cores=2)]
    grown = [SetParallelism("a", 2, on=("h2",)), SetParallelism("b", 2, on=("h2",))]
    late = {"a": LATE, "b": LATE}
    assert plan(operators, {"h1": ["a", "b"]}, metrics=late) == [LeaseHost("h2", "docker"), *grown]
    leases = [lease("h1"), lease("h2", since=50, state=HostState.STARTING)]
    assert plan(operators, {"h1": ["a", "b"], "h2": []}, metrics=late, leases=leases) == grown


def test_no_host_is_leased_beyond_the_limit_or_too_small_for_the_operator():
    assert plan([operator("a", cores=4)], {"h1": ["a"]}, metrics={"a": LATE}, max_hosts=1) == []
    small = HostType("small", cores=1, memory=100)
    assert plan([operator("a", cores=4)], {"h1": ["a"]}, metrics={"a": LATE}, host_types=[small]) == []


def test_the_cheapest_type_that_holds_the_operator_is_leased():
    tiny, large = HostType("tiny", cores=1, price=0.1), HostType("large", cores=16, price=20)
    medium = HostType("medium", cores=4, price=4)
    found = plan([operator("a", cores=4)], {"h1": ["a"]}, metrics={"a": LATE}, host_types=[tiny, large, medium])
    assert found[0] == LeaseHost("h2", "medium")


SPREAD = {"h1": ["a", "a"], "h2": ["a", "a", "a"]}


def test_a_host_is_not_questioned_before_the_end_of_its_paid_time():
    assert plan([operator("a", cores=0.5)], SPREAD, metrics={"a": IDLE}, time=500.0) == []


@pytest.mark.parametrize(
    ("metrics", "first"),
    [
        (IDLE, SetParallelism("a", 4, without=(TaskId("a", 0),))),
        ({Metric.DURATION: 5.0, Metric.BACKLOG: 20.0}, MoveTask(TaskId("a", 0), "h2")),  # busy, it gives up nothing
    ],
)
def test_an_idle_operator_loses_a_fifth_and_the_rest_migrates(metrics, first):
    observation = observe(
        [operator("a", cores=0.5)],
        SPREAD,
        metrics={"a": metrics},
        time=540.0,
        leases=[lease("h1"), lease("h2", since=300.0)],
    )
    plan = Btu().plan(observation)
    assert plan.actions == (first, MoveTask(TaskId("a", 1), "h2"), DrainHost("h1"), ReleaseHost("h1"))
    assert Btu().plan(observation, plan.memory).actions == plan.actions, "what was not carried out is asked for again"


def test_a_host_whose_instances_fit_nowhere_else_is_renewed():
    operators = [operator("a", cores=2), operator("b", cores=0.5)]
    leases = [lease("h1"), lease("h2", since=300.0)]
    found = plan(operators, {"h1": ["b", "a"], "h2": ["a", "a"]}, metrics={"a": IN_TIME, "b": IN_TIME}, time=540.0,
                 leases=leases)  # fmt: skip
    assert found == [RenewHost("h1")]


def test_a_renewed_host_is_questioned_again_in_its_next_unit_only():
    hour = HostType("hour", cores=4, memory=7000, billing=Billing(3600), stop=10)
    policy, memory, asked = Btu(period=60), None, []
    for time in range(60, 7260, 60):
        observation = observe(
            [operator("a")], {"h1": ["a"]}, metrics={"a": IDLE}, time=float(time), leases=[lease("h1", type=hour)],
            host_types=[hour],
        )  # fmt: skip
        plan = policy.plan(observation, memory)
        memory = plan.memory
        asked += [time for action in plan.actions if action == RenewHost("h1")]
    assert asked == [3420, 7020]


def test_partial_release_renews_a_host_that_cannot_be_emptied():
    crowded = {"h1": ["a"] * 5, "h2": ["a"] * 5}
    leases = [lease("h1"), lease("h2", since=300.0)]
    given = {"metrics": {"a": IDLE}, "time": 540.0, "leases": leases}
    assert plan([operator("a", cores=0.8)], crowded, **given) == [RenewHost("h1")]
    assert plan([operator("a", cores=0.8)], crowded, policy=Btu(partial_release=True), **given) == [
        SetParallelism("a", 8, without=(TaskId("a", 0), TaskId("a", 1))),
        RenewHost("h1"),
    ]


@pytest.mark.parametrize("partial", [True, False])
def test_the_last_instance_and_the_last_host_stay(partial):
    found = plan([operator("a")], {"h1": ["a"]}, policy=Btu(partial_release=partial), metrics={"a": IDLE}, time=540.0)
    assert found == [RenewHost("h1")]


def test_hosts_are_questioned_more_often_than_operators_are_scaled_up():
    policy, memory, scaled, asked = Btu(period=15, scaling=60), None, [], []
    for time in range(15, 615, 15):
        observation = observe([operator("a")], {"h1": ["a"]}, metrics={"a": LATE}, time=float(time))
        plan = policy.plan(observation, memory)
        memory = plan.memory
        scaled += [time for action in plan.actions if isinstance(action, SetParallelism)]
        asked += [time for action in plan.actions if isinstance(action, RenewHost)]
    assert scaled == [60 * number for number in range(1, 11)]
    assert asked == [570], "30 s before its end: within the last 5 %, and in time to be gone by then"


def test_of_two_hosts_that_end_together_one_stays():
    found = plan([operator("a", cores=0.5)], {"h1": ["a"], "h2": ["a"]}, metrics={"a": IDLE}, time=540.0)
    assert found == [MoveTask(TaskId("a", 0), "h2"), DrainHost("h1"), ReleaseHost("h1"), RenewHost("h2")]


def test_a_host_is_not_released_in_the_round_that_gives_it_an_instance():
    leases = [lease("h1"), lease("h2", since=300.0)]
    found = plan([operator("a", cores=1)], {"h1": ["a"], "h2": ["a"] * 4}, metrics={"a": LATE}, time=540.0, leases=leases)
    assert found == [SetParallelism("a", 6, on=("h1",)), RenewHost("h1")]


def test_migrations_do_not_go_to_a_host_that_is_still_booting():
    leases = [lease("h1"), lease("h2", since=530.0, state=HostState.STARTING), lease("h3", since=300.0)]
    found = plan([operator("a", cores=2)], {"h1": ["a"], "h2": [], "h3": ["a", "a"]}, metrics={"a": IN_TIME}, time=540.0,
                 leases=leases)  # fmt: skip
    assert found == [RenewHost("h1")]


def test_a_drained_host_goes_when_empty_and_stays_if_migrations_failed():
    draining = lease("h1", state=HostState.DRAINING)
    assert plan([operator("a")], {"h1": [], "h2": ["a"]}, leases=[draining, lease("h2")]) == [ReleaseHost("h1")]
    assert plan([operator("a")], {"h1": ["a"], "h2": ["a"]}, leases=[draining, lease("h2")]) == [
        CancelDrain("h1"),
        RenewHost("h1"),
    ]


@pytest.mark.parametrize(
    ("unit", "minimum", "soon", "not_yet"),
    [
        (3600, 0, (3600 - 180,), (3600 - 181,)),  # within the last 5 % of a long unit,
        (600, 0, (600 - 70, 590), (600 - 71, 591, 600)),  # or a period before it shuts down, which must end with the unit
        (1, 300, (240, 300, 360, 1000.5), (100,)),  # billed by the second it is reviewed in every round
    ],
)
def test_a_host_is_questioned_when_its_paid_time_ends_soon(unit, minimum, soon, not_yet):
    kind = HostType("kind", cores=4, memory=7000, billing=Billing(unit, minimum), stop=10)
    running = Lease("h", kind, 0.0, HostState.RUNNING)
    assert all(Btu(period=60).ends_soon(running, time) for time in soon)
    assert not any(Btu(period=60).ends_soon(running, time) for time in not_yet)


def test_operators_of_one_stage_are_scaled_as_one():
    operators = [operator("a", cores=0.5), operator("b", cores=1.0)]
    # Fused, all four operators are one stage, led by the source; the plant can set its width and places no instance.
    metrics = {"b": {Metric.DURATION: 2.0}, "in": {Metric.BACKLOG: 100.0, Metric.PARALLELISM: 2.0}}
    assert plan(operators, {"h1": []}, metrics=metrics, scalable=["in"], fused=True) == [
        SetParallelism("in", 3, on=("h1",))
    ]
