"""Both policies where the plant places no instance of an operator: its tasks run wherever a slot is free, as on Spark."""

from dataclasses import replace

import pytest

from elastream.core.action import DrainHost, LeaseHost, ReleaseHost, RenewHost, SetParallelism
from elastream.core.decision import Unknown
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric, Rows
from elastream.policies.btu import Btu
from elastream.policies.common.draft import Draft
from elastream.policies.common.queues import service_levels
from elastream.policies.queue_threshold import QueueThreshold
from support.visp_observations import BTU10, lease, observe, operator

ENDING = (lease("h1"), lease("h2", since=300.0))
"""At 540 s, 60 s of the first unit of h1 are left, and h2 is far from the end of its own."""


def afloat(instances: float, duration: float = 0.5, queue: float = 0.0) -> dict[str, dict[Metric, float]]:
    """Operator `a`, in one stage with the source, which leads it."""
    return {
        "a": {Metric.DURATION: duration},
        "in": {Metric.PARALLELISM: instances, Metric.BACKLOG: queue},
    }


def plan(  # noqa: PLR0913
    policy, metrics, *, placed=None, cores=0.5, time=540.0, leases=ENDING, operators=(), scalable=("in",), max_hosts=9
):
    found = placed or {each.host: [] for each in leases}
    observation = observe(
        [operator("a", cores=cores), *operators],
        found,
        metrics=metrics,
        time=time,
        leases=leases,
        scalable=scalable,
        fused=True,
        max_hosts=max_hosts,
    )
    return list(policy.plan(observation).actions)


def test_a_fifth_goes_with_its_host_and_the_rest_floats_on_the_others():
    assert plan(Btu(), afloat(8)) == [SetParallelism("in", 7), DrainHost("h1"), ReleaseHost("h1")]


def test_no_more_is_given_up_than_the_share_of_the_host():
    hosts = [lease("h1"), *(lease(f"h{n}", since=300.0) for n in range(2, 11))]
    assert plan(Btu(), afloat(20, duration=0.1), leases=hosts)[0] == SetParallelism("in", 18)


def test_one_of_few_instances_goes_if_the_others_carry_the_work():
    single = replace(BTU10, name="single", cores=1, slots=1)
    hosts = [lease("h1", type=single), *(lease(f"h{n}", since=300.0, type=single) for n in range(2, 5))]
    few = afloat(4)
    for used, expected in ((0.7, [SetParallelism("in", 3), DrainHost("h1"), ReleaseHost("h1")]), (0.8, [RenewHost("h1")])):
        few["in"][Metric.UTILISATION] = used
        assert plan(Btu(), few, leases=hosts) == expected


def test_a_host_that_the_floating_instances_need_is_renewed():
    assert plan(Btu(), afloat(12)) == [RenewHost("h1")]  # 10 of them need 5 cores, one host has 4


def test_a_busy_operator_gives_up_nothing_and_goes_on_where_there_is_room():
    busy = afloat(4, duration=5.0, queue=20.0)
    assert plan(Btu(), busy) == [DrainHost("h1"), ReleaseHost("h1")]


def test_a_host_is_leased_when_what_floats_has_filled_those_there_are():
    late = afloat(8, duration=2.0, queue=80.0)
    assert plan(Btu(), late, leases=[lease("h1")], time=60.0) == [
        LeaseHost("h2", "docker"),
        SetParallelism("in", 9, on=("h2",)),
    ]


def test_a_host_is_full_when_its_slots_are_at_any_declared_cores():
    late = afloat(8, duration=2.0, queue=80.0)
    assert plan(Btu(), late, cores=0.1, leases=[lease("h1")], time=60.0)[0] == LeaseHost("h2", "docker")


@pytest.mark.parametrize("policy", [Btu(), QueueThreshold()], ids=["btu", "queue_threshold"])
@pytest.mark.parametrize(("instances", "leases_one"), [(11, False), (12, True)])
def test_what_floats_fills_large_and_small_hosts_together(policy, instances, leases_one):
    small = HostType("small", cores=1, memory=7000, slots=1, price=1, billing=BTU10.billing)
    hosts = [lease("h1"), *(lease(f"h{n}", type=small) for n in range(2, 6))]
    found = plan(policy, afloat(instances, duration=2.0, queue=80.0), cores=1.0, leases=hosts, time=60.0)
    assert any(isinstance(action, LeaseHost) for action in found) == leases_one
    assert SetParallelism("in", instances + 1) in [replace(a, on=()) for a in found if isinstance(a, SetParallelism)]


def test_a_stages_level_is_the_sum_of_its_operators_levels():
    observation = observe([operator("a", level=2.0), operator("b", level=3.0)], {"h1": []}, fused=True, scalable=["in"])
    assert service_levels(observation.context) == {"a": 2.0, "b": 3.0, "in": 5.0}
    bare = observe([operator("a", level=None), operator("b", level=4.0), operator("c", level=None)], {"h1": []})
    assert service_levels(replace(bare.context, target_latency=6.0)) == {"a": 2.0, "b": 4.0, "c": 2.0}
    assert Btu().unsupported_reason(bare.context).startswith("it keeps service levels, and operator 'a' has none")
    assert Btu().unsupported_reason(replace(bare.context, target_latency=6.0)) is None


def test_what_is_lacking_to_see_late_records_is_named():
    unknown = [
        Btu().plan(observe([operator("a", level=1.0)], {"h1": ["a"]}, metrics=metrics)).unknown
        for metrics in ({}, {"a": {Metric.BACKLOG: 10.0}}, {"a": {Metric.BACKLOG: 60.0}})
    ]
    assert unknown == [
        (Unknown(Metric.BACKLOG, Rows.OPERATOR, "a"),),
        (),
        (Unknown(Metric.DURATION, Rows.OPERATOR, "a"),),
    ]


def test_an_idle_floating_operator_makes_room_before_a_lease():
    observation = observe(
        [operator("a"), operator("b")],
        {"h1": []},
        metrics={
            "a": {Metric.PARALLELISM: 1.0, Metric.DURATION: 2.0, Metric.BACKLOG: 80.0},
            "b": {Metric.PARALLELISM: 3.0, Metric.DURATION: 0.5, Metric.BACKLOG: 0.0},
        },
    )
    assert list(Btu().plan(observation).actions) == [SetParallelism("b", 2), SetParallelism("a", 2, on=("h1",))]


def test_an_operator_that_floats_is_given_one_number_in_a_plan():
    # Two hosts end: each takes its share of the operator with it, and only what is left in the end is asked for.
    hosts = [lease("h1"), lease("h2"), *(lease(f"h{n}", since=300.0) for n in range(3, 11))]
    found = plan(Btu(), afloat(20, duration=0.1), leases=hosts)
    assert [action for action in found if isinstance(action, SetParallelism)] == [SetParallelism("in", 16)]
    assert ReleaseHost("h1") in found
    assert ReleaseHost("h2") in found


def test_a_closed_host_weighs_on_the_others_until_a_rollback():
    observation = observe(
        [operator("a", cores=0.5)],
        {"h1": [], "h2": []},
        metrics=afloat(6),
        leases=ENDING,
        scalable=["in"],
        fused=True,
    )
    draft = Draft(observation)
    mark, before = draft.mark(), draft.free_cores.tolist()
    assert before == [2.5, 2.5]
    draft.close("h1")
    assert draft.free_cores.tolist() == [4.0, 1.0]
    draft.remove_any(draft.by_name["in"], "idle", 2)
    assert draft.free_cores.tolist() == [4.0, 2.0]
    assert draft.floating["in"] == 4
    draft.rollback(mark)
    assert draft.free_cores.tolist() == before
    assert draft.floating["in"] == draft.instances["in"] == 6


def test_the_baseline_keeps_a_host_that_floating_instances_need():
    busy = afloat(12, queue=20.0)
    assert plan(QueueThreshold(), busy) == []
    assert plan(QueueThreshold(), afloat(4, queue=20.0)) == [ReleaseHost("h2")]
