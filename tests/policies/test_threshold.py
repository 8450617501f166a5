"""The default policy: what is observed in, actions out; the closed loop runs on the fake plant in no time."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.action import KINDS, CancelDrain, DrainHost, LeaseHost, MoveTask, ReleaseHost, SetParallelism
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import HostState, Lease
from elastream.core.lateness import Cause, Diagnosis, unjudged
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Context, Leases, MicroBatch, Observation, Sample
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import ElastreamError
from elastream.policies.by_load import ByLoad
from elastream.policies.common.load_history import LinearFit, LoadHistory
from elastream.policies.forecasting.trend import Surprises
from elastream.policies.horizon.policy import Horizon
from elastream.policies.threshold import Threshold
from support.fake_plant import SMALL, FakePlant, word_count

GRAPH = word_count().graph
LAYOUT = lay_out(GRAPH)
WORK = 0.01
"""Core-seconds a record in every observation made here."""


def host(name, state=HostState.RUNNING, since=-995.0, changed=None):
    """A lease whose billing time unit of 10 s ends in 5 s, unless `since` says otherwise."""
    path = [HostState.REQUESTED, HostState.STARTING, HostState.RUNNING, HostState.DRAINING]
    lease = Lease(name, SMALL, since)
    for step in path[1 : path.index(state) + 1]:
        lease = lease.to(step, since if changed is None or step is not state else changed)
    return lease


def frame(arriving, processed=None, backlog=0.0, work=WORK, on="words"):
    processed = arriving if processed is None else processed
    names = tuple(GRAPH.by_name)
    return Frame(
        names,
        {
            Metric.ARRIVAL_RATE: [arriving if n == "source" else processed for n in names],
            Metric.PROCESSED_RATE: [processed for _ in names],
            Metric.BACKLOG: [backlog if n == "source" else math.nan for n in names],
            Metric.BUSY_CORES: [processed * work if n == on else 0.0 for n in names],
        },
    )


def observe(  # noqa: PLR0913
    leases,
    arriving=0.0,
    *,
    before=None,
    processed=None,
    backlog=0.0,
    p99=0.5,
    tasks=(),
    parallelism=None,
    cpu=math.nan,
    max_hosts=10,
    min_hosts=1,
    seen_for=30,
):
    """At 1000 s; `before` is the arrival rate in the history, `tasks` the host number of each task of `count`."""
    context = Context(
        LAYOUT, {"small": SMALL}, 2.0, max_hosts, min_hosts, frozenset(KINDS), frozenset({"source"} if parallelism else ())
    )
    before = arriving if before is None else before
    names = tuple(GRAPH.by_name)
    return Observation(
        1000.0,
        context,
        frame(arriving, processed, backlog),
        Frame(["word_count"], {Metric.LATENCY_P99: [p99]}),
        Frame([lease.host for lease in leases], {Metric.CPU: [cpu] * len(leases)}),
        TaskFrame([names.index("count")] * len(tasks), range(len(tasks)), tasks, names),
        leases={lease.host: lease for lease in leases},
        composition=Composition(parallelism={"source": parallelism} if parallelism else {}),
        history=tuple(Sample(1000.0 - ago, frame(before)) for ago in range(seen_for, 0, -1)),
        next_host=len(leases) + 1,
    )


def kinds(plan):
    return [type(action) for action in plan]


def test_a_step_of_the_load_is_answered_at_once_and_once():
    plan = Threshold().plan(observe([host("h1")], 280.0, before=50.0, processed=90.0)).actions
    # 280/s x 0.01 core-seconds at 77 % of a core a host: four hosts. Until they come, in 4 s, (280/s - 100/s) x 4 s wait,
    # 440 of them more than 1 s of records: 1.1 cores more, so that these are in time. One host is there.
    assert plan == tuple(LeaseHost(f"h{n}", "small") for n in (2, 3, 4, 5, 6))
    assert plan[0].why.startswith("280/s needs 2.8 cores, to be filled to 77% at most")
    coming = [host(f"h{n}", HostState.STARTING, 998.0) for n in (2, 3, 4, 5, 6)]
    assert Threshold().plan(observe([host("h1"), *coming], 280.0, before=50.0, processed=90.0)).actions == ()


@pytest.mark.parametrize("processed", [50.0, 20.0])
def test_first_batches_lease_no_host_while_nothing_is_late(processed):
    def seen(seconds):
        early = observe([host("h1")], 50.0, seen_for=seconds)
        dear = [replace(sample, operators=frame(50.0, processed, work=0.05)) for sample in early.history]
        return replace(early, operators=frame(50.0, processed, work=0.05), history=tuple(dear))

    assert Threshold().plan(seen(6)).actions == ()
    assert LeaseHost in kinds(Threshold().plan(seen(30)).actions)


def started(policy, rates, batches, seconds=12, max_hosts=10):
    """Plan every 2 s of a run's first seconds, late and at 4.3 busy cores; return when it first leases or asks for more.

    NaN if it does neither.

    Args:
        rates: Processed records/s, of the 508/s that arrive.
        batches: Seconds of each micro-batch.
    """
    ends = list(itertools.accumulate(batches))
    memory, samples = None, ()
    for at in range(2, seconds + 1, 2):
        done = rates if ends[0] <= at else 0.0
        now = replace(
            observe([host("h1")], 508.0, backlog=(508.0 - rates) * at + 600.0, p99=4.0, seen_for=0, max_hosts=max_hosts),
            operators=frame(508.0, done, (508.0 - rates) * at + 600.0, work=4.3 / 508 if done else 0.0),
            batches=[
                MicroBatch("source", end - took, took, 500.0, 4.0, 1.0)
                for end, took in zip(ends, batches, strict=True)
                if at - 2 < end <= at
            ],
            time=1000.0 + at,
            history=samples,
            stalled={"source": float(at)} if 10 < at < ends[0] else {},
        )
        plan = policy.plan(now, memory)
        if plan.remarks or any(isinstance(action, LeaseHost) for action in plan.actions):
            return float(at)
        memory, samples = plan.memory, (*samples, Sample(now.time, now.operators))
    return math.nan


@pytest.mark.parametrize("policy", [Threshold(cool_down=60.0), ByLoad()])
def test_late_first_batch_at_a_high_cost_leases_no_host(policy):
    assert math.isnan(started(policy, rates=508.0, batches=[3.5, 1.0, 0.5, 0.5]))


@pytest.mark.parametrize("max_hosts", [1, 10], ids=["at most one host", "more hosts"])
@pytest.mark.parametrize("first", [20.0, 45.0])
def test_first_batch_that_takes_long_asks_for_no_host(first, max_hosts):
    assert math.isnan(started(ByLoad(), 508.0, [first, 3.0, 1.0, 0.5], seconds=int(first) + 4, max_hosts=max_hosts))


@pytest.mark.parametrize("max_hosts", [1, 10], ids=["at most one host", "more hosts"])
def test_query_of_which_no_operator_is_known_yet_asks_for_no_host(max_hosts):
    """A query that Autopilot watches has a source and a sink only, until its first batch has a plan."""
    layout = lay_out(Graph("q", (Operator("q", Kind.SOURCE), Operator("q/out", Kind.SINK)), (Edge("q", "q/out"),)))
    seen = observe([host("h1")], math.nan, p99=15.0, seen_for=0, max_hosts=max_hosts)
    unknown = Frame(tuple(layout.graph.by_name))
    context = replace(seen.context, layout=layout, scalable=frozenset())
    memory = None
    for at in range(2, 20, 2):
        now = replace(seen, time=1000.0 + at, context=context, operators=unknown, history=(), stalled={"q": float(at)})
        plan = ByLoad().plan(now, memory)
        memory = plan.memory
        assert (plan.actions, plan.remarks) == ((), ())


@pytest.mark.parametrize("policy", [Threshold(), ByLoad()])
def test_load_that_overwhelms_the_first_host_leases_in_a_few_batches(policy):
    assert started(policy, rates=120.0, batches=[3.5, 2.5, 3.5, 4.5]) <= 10.0


def leased_while_cold(rounds, batch_of):
    """Return whether hosts are leased in rounds of 2 s, on a full host without a backlog; `batch_of` is by round."""
    memory, leased, policy = None, False, Threshold(cool_down=60.0)
    for number in range(rounds):
        now = observe([host("h1")], 508.0, p99=6.0, cpu=0.95, seen_for=0)
        operators = frame(508.0, 508.0, 0.0, work=4.0 / 508)
        plan = policy.plan(replace(now, operators=operators, batches=[batch_of(number)], time=1000.0 + 2 * number), memory)
        leased |= any(isinstance(action, LeaseHost) for action in plan.actions)
        memory = plan.memory
    return leased


@pytest.mark.parametrize(("latency", "leases"), [(5.0, True), (1.0, False)], ids=["late", "in time"])
def test_batches_that_stay_late_on_a_full_host_lease_one_more(latency, leases):
    """A query without a limit reads all that waits: its batches grow, and its backlog does not."""
    first = 6.0
    assert leases is leased_while_cold(
        20, lambda at: MicroBatch("source", 998.0 + 2 * at, 2.0, 3000.0, first if at < 2 else latency, 1.0)
    )


def test_a_late_batch_that_is_shown_again_counts_once():
    def batch(at):
        number = at // 4
        return MicroBatch("source", 998.0 + 8 * number, 2.0, 3000.0, 6.0 if number % 2 else 1.0, 1.0)

    assert not leased_while_cold(28, batch)


@pytest.mark.parametrize("policy", [Threshold(), Horizon()])
def test_late_at_an_unknown_rate_recommends_no_infinite_number_of_hosts(policy):
    plan = policy.plan(replace(observe([host("h1")], math.nan, p99=6.0), time=1100.0))
    assert plan.hosts is None or not math.isinf(plan.hosts)


def test_too_few_partitions_are_reported_after_three_warm_rounds():
    """The first batches of a run, small ones at a jump of the load and those of hosts that come work more a record."""

    def seen(seconds, at):
        early, dear = observe([host("h1")], 50.0, seen_for=seconds), frame(50.0, work=0.05, on="count")
        context = replace(early.context, partitions={"count": 1})  # 2.5 cores of work, and it keeps one busy
        history = tuple(replace(sample, operators=dear) for sample in early.history)
        return replace(early, context=context, operators=dear, history=history, time=early.time + at)

    assert Threshold().plan(seen(6, 0.0)).remarks == ()
    memory = None
    for at in (0.0, 2.0):
        plan = Threshold().plan(seen(30, at), memory)
        assert plan.remarks == ()
        memory = plan.memory
    (said,) = Threshold().plan(seen(30, 4.0), memory).remarks
    assert said.startswith("more hosts cannot keep up with 50/s: count has 1 state partition")


def test_what_the_first_batches_of_a_host_work_is_no_work_of_a_record():
    came = observe([host("h1"), host("h2", changed=994.0)], 100.0)
    dear = [s if s.time < 994.0 else replace(s, operators=frame(100.0, work=0.05)) for s in came.history]
    came = replace(came, operators=frame(100.0, work=0.05), history=tuple(dear))
    assert LeaseHost not in kinds(Threshold().plan(came).actions)


def test_no_host_goes_while_the_rate_rises():
    two = [host("h1"), host("h2")]
    rising = observe(two, 74.0)
    rising = replace(rising, history=tuple(replace(s, operators=frame(s.time - 926.0)) for s in rising.history))
    assert DrainHost in kinds(Threshold(settle=10.0).plan(observe(two, 74.0)).actions)
    assert DrainHost not in kinds(Threshold(settle=10.0).plan(rising).actions)


def test_queue_processed_within_the_target_is_not_late():
    ending = observe([host("h1"), host("h2")], 0.0, before=100.0, processed=100.0, backlog=50.0, parallelism=1)
    assert not any(isinstance(action, SetParallelism) for action in Threshold().plan(ending).actions)


def test_host_limit_holds_and_is_reported():
    plan = Threshold().plan(observe([host("h1")], 900.0, max_hosts=3))
    assert kinds(plan.actions) == [LeaseHost, LeaseHost]
    # (900/s x 0.01 core-seconds, and 5.75 cores for what waits until hosts work) at 77 % of a core a host.
    assert plan.remarks == (
        "max_hosts: at most 3 hosts may be leased, and 20 are needed for 900/s and 2,300 records of late backlog",
    )


@pytest.mark.parametrize("arriving", [120.0, 75.0, 0.0])
def test_host_limit_is_not_reported_if_hosts_suffice(arriving):
    assert Threshold().plan(observe([host("h1")], arriving, max_hosts=3)).remarks == ()


def test_late_backlog_is_processed_within_a_host_start():
    # 70/s fill one host; 540 records, 140 of them within the target latency: 400 x 0.01 / 4 s is one core more.
    plan = Threshold().plan(observe([host("h1")], 70.0, processed=70.0, backlog=540.0)).actions
    assert kinds(plan) == [LeaseHost, LeaseHost]
    assert "backlog" in plan[0].why
    assert Threshold().plan(observe([host("h1")], 70.0, backlog=139.0)).actions == ()


@pytest.mark.parametrize("arriving", [1.0, 0.2])
def test_burst_backlog_costs_the_same_at_a_low_rate(arriving):
    """Batches work 0.3 cores whatever they hold: shared by a record a second that is 0.3 core-seconds, and not 0.01."""
    rates = [20.0 + 2.0 * n for n in range(30)]
    seen = observe([host("h1")], arriving, processed=80.0, backlog=950.0, max_hosts=99)
    works = [frame(rate, work=0.3 / rate + 0.005) for rate in rates]
    history = tuple(replace(sample, operators=each) for sample, each in zip(seen.history, works, strict=True))
    seen = replace(seen, history=history, operators=frame(arriving, 80.0, 950.0, work=0.3 / 80.0 + 0.005))
    plan = Threshold().plan(seen).actions
    # Of 950 records h1 works off 430 until a host comes: 520 x 0.0088 core-seconds / 4 s, and 0.3, at 77 % of a core each.
    assert kinds(plan) == [LeaseHost]
    assert "backlog" in plan[0].why


def test_late_and_falling_behind_leases_a_host_whatever_the_meter_says():
    late = {"processed": 25.0, "before": 25.0, "p99": 9.0}
    plan = Threshold().plan(observe([host("h1")], 30.0, **late)).actions
    assert kinds(plan) == [LeaseHost]
    assert "late" in plan[0].why
    just_came = [host("h1"), host("h2", since=990.0, changed=995.0)]
    assert LeaseHost not in kinds(Threshold().plan(observe(just_came, 30.0, **late)).actions)


def test_min_hosts_is_restored_even_without_metrics():
    observation = replace(observe([host("h1")], math.nan, min_hosts=3), history=())
    assert kinds(Threshold().plan(observation).actions) == [LeaseHost, LeaseHost]


def test_spare_hosts_are_kept_above_need():
    assert kinds(Threshold(spare=2).plan(observe([host("h1")], 60.0)).actions) == [LeaseHost, LeaseHost]
    assert Threshold(spare=1).plan(observe([host("h1"), host("h2")], 10.0)).actions == ()


def test_at_most_half_are_drained_fewest_tasks_first():
    plan = Threshold().plan(observe([host("h1"), host("h2"), host("h3")], 20.0, tasks=(0, 0, 1, 2, 2))).actions
    assert plan == (DrainHost("h2"),)


LATE = {"p99": 60.0, "backlog": 4000.0, "processed": 15.0}


def late(*diagnoses, hosts=2, **more):
    """Return an observation of hosts with little work and late records."""
    seen = observe([host(f"h{n}") for n in range(1, hosts + 1)], 20.0, **{**LATE, **more})
    return replace(seen, diagnoses=dict(zip("abc", diagnoses, strict=False)))


HOPELESS, HOPEFUL = Diagnosis(Cause.DRIVER, hosts_help=False), Diagnosis(Cause.HOSTS)


def test_hosts_that_do_not_mend_lateness_are_given_back():
    assert kinds(Threshold().plan(late(HOPELESS)).actions) == [DrainHost]
    assert DrainHost not in kinds(Threshold().plan(late()).actions)
    assert DrainHost not in kinds(Threshold().plan(late(HOPELESS, HOPEFUL)).actions)
    assert LeaseHost in kinds(Threshold().plan(late(HOPEFUL)).actions)
    assert LeaseHost not in kinds(Threshold().plan(late(HOPELESS)).actions)


def test_slots_that_still_shorten_a_batch_stay():
    two_tasks = Diagnosis(Cause.FEW_TASKS, hosts_help=False, slots=2)
    assert Threshold().plan(late(two_tasks)).actions == ()
    assert kinds(Threshold().plan(late(two_tasks, hosts=4)).actions) == [DrainHost, DrainHost]


def test_no_host_goes_while_nobody_knows_how_late_records_are():
    quiet = {"p99": math.nan, "backlog": math.nan, "processed": 20.0}
    assert kinds(Threshold().plan(late(**quiet)).actions) == [DrainHost]
    assert Threshold().plan(late(unjudged("q", "1 file"), **quiet)).actions == ()


def test_hosts_without_work_of_others_are_drained_first():
    seen = observe([host("h1"), host("h2"), host("h3")], 20.0, tasks=(0, 0, 1, 2, 2))
    busy = replace(seen, occupied={"h2": "1 task of nightly"})
    assert Threshold().plan(busy).actions == (DrainHost("h1"),)
    assert Threshold().plan(replace(busy, occupied=dict.fromkeys(seen.usable, "a task"))).actions == (DrainHost("h2"),)


def test_pinned_hosts_are_neither_drained_nor_released():
    seen = replace(observe([host("h1"), host("h2")], 20.0), pinned=dict.fromkeys(("h1", "h2"), "a task without end"))
    assert DrainHost not in kinds(Threshold().plan(seen).actions)
    leases = [host("h1"), host("h2", HostState.DRAINING, changed=990.0)]
    empty = replace(observe(leases, 20.0, tasks=(0, 0)), pinned={"h2": "a task without end"})
    assert Threshold().plan(empty).actions == ()


def test_the_last_host_with_a_free_slot_stays():
    seen = observe([host("h1"), host("h2")], 20.0)
    assert kinds(Threshold().plan(seen).actions) == [DrainHost]
    held = replace(seen, leases=Leases(seen.leases, {"h1": 1.0}), pinned={"h1": "1 task of fast"})
    assert DrainHost not in kinds(Threshold().plan(held).actions)


def test_slots_of_others_count_as_no_capacity():
    seen = observe([host("h1"), host("h2")], 20.0)
    half = replace(seen, leases=Leases(seen.leases, {"h1": 0.5}))
    assert half.cores.of(half.usable) == 0.75 * seen.cores.of(seen.usable)
    assert half.usable_cores[0] == 0.75 * seen.usable_cores[0]
    full = replace(seen, leases=Leases(seen.leases, {"h1": 1.0, "h2": 1.0}))
    assert full.usable == ()
    assert LeaseHost in kinds(Threshold().plan(full).actions)


HIGH = sorted([*observe([host("h1")], 20.0).history, Sample(992.0, frame(90.0))], key=lambda sample: sample.time)


@pytest.mark.parametrize(
    "observation",
    [
        observe([host("h1"), host("h2", since=985.0, changed=995.0)], 1.0, tasks=(0, 1)),
        observe([host("h1"), host("h2"), host("h3", HostState.STARTING, 998.0)], 1.0, tasks=(0, 1, 2)),
        observe([host("h1"), host("h2"), host("h3", HostState.DRAINING, changed=998.0)], 1.0, tasks=(0, 1, 2)),
        replace(observe([host("h1"), host("h2")], 20.0), history=tuple(HIGH)),
        observe([host("h1"), host("h2")], 20.0, seen_for=5),
        observe([host("h1"), host("h2")], 20.0, cpu=0.6),
    ],
    ids=["one came a moment ago", "one is coming", "one is draining", "high a moment ago", "short history", "busy hosts"],
)
def test_no_host_is_drained_while(observation):
    assert DrainHost not in kinds(Threshold().plan(observation).actions)
    assert kinds(Threshold().plan(observe([host("h1"), host("h2")], 20.0)).actions) == [DrainHost], "else one is"


@pytest.mark.parametrize(("cool_down", "goes"), [(20.0, []), (5.0, [DrainHost])])
def test_no_host_goes_soon_after_another(cool_down, goes):
    policy = Threshold(settle=10.0, cool_down=cool_down)
    draining = [host("h1"), host("h2"), host("h3", HostState.DRAINING, changed=998.0)]
    memory = policy.plan(observe(draining, 20.0, tasks=(0, 1))).memory
    later = replace(observe(draining[:2], 20.0, tasks=(0, 1)), time=1010.0)
    assert kinds(policy.plan(later, memory).actions) == goes


def test_a_drained_host_is_released_once_it_holds_no_task():
    leases = [host("h1"), host("h2", HostState.DRAINING, changed=990.0)]
    assert Threshold().plan(observe(leases, 20.0, tasks=(0, 1))).actions == ()
    assert Threshold().plan(observe(leases, 20.0, tasks=(0, 0))).actions == (ReleaseHost("h2"),)


def test_a_returning_load_cancels_a_drain_before_leasing():
    leases = [host("h1"), host("h2", HostState.DRAINING, changed=990.0)]
    assert Threshold().plan(observe(leases, 200.0, tasks=(0, 1))).actions == (
        CancelDrain("h2"),
        LeaseHost("h3", "small"),
        LeaseHost("h4", "small"),
    )


def test_with_nothing_arriving_hosts_go_after_a_bad_latency():
    assert kinds(Threshold().plan(observe([host("h1"), host("h2")], 0.0, before=0.0, p99=60.0)).actions) == [DrainHost]


def test_tasks_are_moved_onto_a_host_that_has_come():
    plan = Threshold().plan(observe([host("h1"), host("h2", changed=999.0)], 60.0, tasks=(0, 0, 0, 0))).actions
    assert kinds(plan) == [MoveTask, MoveTask]
    assert {action.host for action in plan} == {"h2"}


def test_source_stage_has_as_many_tasks_as_slots_are_filled():
    three = [host("h1"), host("h2"), host("h3", changed=999.0)]
    # 130/s x 0.01 core-seconds at 70 % of a core a slot: two slots.
    assert SetParallelism("source", 2) in Threshold().plan(observe(three, 130.0, parallelism=1)).actions
    assert SetParallelism("source", 3) in Threshold().plan(observe(three, 500.0, parallelism=1)).actions
    assert SetParallelism("source", 1) in Threshold().plan(observe([host("h1")], 10.0, parallelism=3)).actions
    assert SetParallelism not in kinds(Threshold().plan(observe([host("h1")], 280.0, parallelism=1)).actions), "no slot"


def test_a_source_stage_keeps_the_slots_of_a_draining_host():
    leases = [host("h1"), host("h2", HostState.DRAINING, changed=990.0)]
    observation = observe(leases, 90.0, parallelism=2, tasks=(0, 1))
    assert SetParallelism not in kinds(Threshold().plan(observation).actions)
    gone = replace(observation, leases={"h1": leases[0]})
    assert SetParallelism("source", 1) in Threshold().plan(gone).actions


def test_fixed_batch_cost_does_not_grow_with_the_load():
    def seen(rate):
        # Half a core for having batches, and 0.01 core-seconds a record.
        busy = frame(rate)
        columns = {metric: busy.column(metric) for metric in busy.metrics}
        columns[Metric.BUSY_CORES] = [0.5 + rate * WORK if n == "words" else 0.0 for n in busy.ids]
        return Frame(busy.ids, columns)

    history = tuple(Sample(1000.0 - ago, seen(10.0 + ago % 10)) for ago in range(30, 0, -1))
    columns = {metric: seen(19.0).column(metric) for metric in seen(19.0).metrics}
    columns[Metric.ARRIVAL_RATE] = [200.0 if n == "source" else 19.0 for n in seen(19.0).ids]
    now = Frame(seen(19.0).ids, columns)
    plan = Threshold().plan(replace(observe([host("h1")], 200.0), operators=now, history=history)).actions
    # 0.5 + 200 x 0.01 cores at 77 %: four hosts, and two for the records that wait until they come; one is there. In
    # proportion it would have been twelve.
    assert kinds(plan) == [LeaseHost] * 5


def test_fit_counts_with_its_error_beyond_observed_rates():
    rates = np.linspace(5_000.0, 15_000.0, 30)
    scattered = LinearFit.through(rates, 0.15 + 5e-6 * rates + 0.05 * (-1.0) ** np.arange(30))
    exact = LinearFit.through(rates, 0.15 + 5e-6 * rates)
    assert exact.cores(54_000.0, 1.0) == pytest.approx(0.15 + 5e-6 * 54_000)
    assert scattered.cores(10_000.0, 1.0) == pytest.approx(0.2, abs=0.01)
    assert 0.5 < scattered.cores(54_000.0, 1.0) < 0.7
    assert scattered.cores(54_000.0, 0.5) == 0.5


def test_nothing_known_nothing_done():
    unknown = Frame(tuple(GRAPH.by_name))
    observation = replace(
        observe([host("h1"), host("h2")], parallelism=2), operators=unknown, application=Frame(), history=()
    )
    assert Threshold().plan(observation).actions == ()


STILL_REQUESTED = [host("h2", HostState.REQUESTED, 960.0), host("h3", HostState.REQUESTED, 970.0)]


@pytest.mark.parametrize(
    ("observation", "withdrawn"),
    [
        (observe([host("h1"), *STILL_REQUESTED], 20.0), ("h3", "h2")),
        (observe([host("h1"), *STILL_REQUESTED], 100.0), ("h3",)),
        (observe([host("h1"), *STILL_REQUESTED[:1]], 20.0, before=120.0), ()),
        (observe([host("h1"), host("h2", HostState.STARTING, 960.0)], 20.0), ()),
        (observe([host("h1", HostState.REQUESTED)], 0.0), ()),
    ],
    ids=["not needed", "as many as are not needed", "needed a moment ago", "one that starts", "no host works"],
)
def test_waiting_hosts_are_withdrawn_once_others_suffice(observation, withdrawn):
    plan = Threshold(settle=20.0).plan(observation).actions
    assert [action.host for action in plan if isinstance(action, ReleaseHost)] == list(withdrawn)
    assert all(action.why == "it still waits, and for 20.0 s the others would have sufficed" for action in plan[:1])


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ElastreamError, match=r"scale_out is 1.5; it must be above 0 and at most 1"):
        Threshold(scale_out=1.5)
    with pytest.raises(ElastreamError, match=r"tolerance is -0.1"):
        Threshold(tolerance=-0.1)


@pytest.mark.parametrize(
    ("since", "goes"),
    [(-1000.0, False), (-997.0, False), (-995.0, True), (-992.0, False)],
    ids=["just begun", "3 s left", "5 s left", "8 s left"],
)
def test_a_host_goes_back_only_when_what_is_paid_of_it_ends(since, goes):
    leases = [host("h1", since=since), host("h2", since=since)]
    assert (DrainHost in kinds(Threshold().plan(observe(leases, 20.0)).actions)) is goes


def test_a_trend_is_followed_one_host_start_ahead():
    # One host is filled to 70 % now; in 6 s, when a host asked for now works, it would be to 88 %.
    steady = observe([host("h1")], 70.0)
    faster = replace(steady, history=tuple(Sample(1000.0 - ago, frame(70.0 - 3 * ago)) for ago in range(20, 0, -1)))
    assert Threshold().plan(steady).actions == ()
    assert kinds(Threshold().plan(faster).actions) == [LeaseHost]
    assert "expected in 6.0 s" in Threshold().plan(faster).actions[0].why


def test_first_batches_with_records_do_not_count():
    heavy = frame(50.0, work=0.05)
    first = replace(observe([host("h1")], 50.0, before=0.0), operators=heavy)
    assert Threshold().plan(first).actions == ()
    lasting = tuple(Sample(1000.0 - ago, heavy if ago < 12 else frame(0.0)) for ago in range(30, 0, -1))
    assert LeaseHost in kinds(Threshold().plan(replace(first, history=lasting)).actions)


@pytest.mark.parametrize(("target", "leases"), [(2.0, 1), (20.0, 0)])
def test_reserve_for_a_jump_keeps_its_records_in_time(target, leases):
    now = observe([host("h1"), host("h2")], 100.0)
    now = replace(now, context=replace(now.context, target_latency=target))
    jumped = Surprises(np.array([[900.0], [250.0], [100.0]]), ((300.0, (150.0,) * 9), (900.0, (150.0,) * 9)))
    memory = replace(LoadHistory.after(None, replace(now, time=998.0), 120.0, 10.0), surprises=jumped)
    # 250/s for the 6 s until hosts asked for then work: two hosts lag behind by 300 records, 1.5 s of them and no 10 s.
    assert kinds(Threshold().plan(now, memory).actions) == [LeaseHost] * leases


def test_noise_leases_no_host():
    draw = random.Random(7)
    plant, policy, memory = FakePlant(hosts=2), Threshold(host_type="small"), None
    for _ in range(300):
        plant.arrival_rate = 120.0 * draw.uniform(0.85, 1.15)
        plant.clock.sleep_until(plant.clock.now() + 1)
        plan = policy.plan(plant.observe(), memory)
        memory = plan.memory
        assert not any(isinstance(action, LeaseHost | DrainHost) for action in plan.actions)


def drive(plant, policy, seconds, memory=None):
    """(hosts running at each second under `policy`, planning every 2 s; its memory)."""
    counts = []
    for second in range(seconds):
        plant.clock.sleep_until(plant.clock.now() + 1)
        observation = plant.observe()
        counts.append(len(observation.usable))
        if second % 2 == 0:
            plan = policy.plan(observation, memory)
            memory = plan.memory
            for action in plan.actions:
                plant.apply(action)
    return counts, memory


def test_hosts_rise_and_fall_with_the_load_and_then_stand_still():
    plant, policy = FakePlant(arrival_rate=30.0), Threshold(host_type="small")
    counts, memory = drive(plant, policy, 20)
    assert set(counts) == {1}
    plant.arrival_rate = 300.0
    high, memory = drive(plant, policy, 30, memory)
    assert max(high) >= 4
    settled, memory = drive(plant, policy, 60, memory)
    assert set(settled[-20:]) == {4}, "300/s x 0.01 at 77 % of a core: four hosts"
    plant.arrival_rate = 30.0
    low, _ = drive(plant, policy, 120, memory)
    assert set(low[-20:]) == {1}
    assert all(after >= before / 2 for before, after in itertools.pairwise(low))


@pytest.mark.parametrize(("rate", "before"), [(5e-324, 1.0), (5e-324, 5e-324), (1.0, 5e-324)])
def test_tiny_rate_needs_no_endless_number_of_hosts(rate, before):
    leases = [host("h1", HostState.REQUESTED)]
    plan = Threshold().plan(observe(leases, rate, before=before, backlog=256.0, max_hosts=8)).actions
    assert kinds(plan).count(LeaseHost) <= 1


@given(
    rate=st.floats(0, 2000) | st.just(math.nan),
    before=st.floats(0, 2000) | st.just(math.nan),
    states=st.lists(st.sampled_from(list(HostState)[:4]), min_size=1, max_size=8),
    backlog=st.floats(0, 1e6) | st.just(math.nan),
    spare=st.integers(0, 3),
)
def test_a_plan_stays_in_bounds_and_grows_or_shrinks(rate, before, states, backlog, spare):
    leases = [host(f"h{n}", state) for n, state in enumerate(states, start=1)]
    placed = [n for n, state in enumerate(states) if state in (HostState.RUNNING, HostState.DRAINING)]
    observation = observe(leases, rate, before=before, backlog=backlog, tasks=placed, max_hosts=8)
    plan = Threshold(spare=spare).plan(observation).actions
    assert plan == Threshold(spare=spare).plan(observation).actions
    assert len(leases) + kinds(plan).count(LeaseHost) <= 8
    grows = any(kind in (LeaseHost, CancelDrain) for kind in kinds(plan))
    assert not (grows and DrainHost in kinds(plan))
    assert kinds(plan).count(DrainHost) <= len(observation.usable) // 2
    assert len(set(plan)) == len(plan)
    assert len(observation.usable) - kinds(plan).count(DrainHost) >= min(1, len(observation.usable))
