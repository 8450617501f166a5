"""The rivals' defining rules on figures computed by hand, and a short simulation of each."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from elastream.core.action import CancelDrain, DrainHost, LeaseHost, ReleaseHost
from elastream.core.decision import Unknown
from elastream.core.frames import Frame
from elastream.core.hosts import Billing, HostType
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import MicroBatch
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import ElastreamError
from elastream.policies.rivals.contune import ContTune, predicted
from elastream.policies.rivals.daedalus import Daedalus, Knowledge, forecast_of, recovery_time, with_samples
from elastream.policies.rivals.databricks import Databricks, Usage
from elastream.policies.rivals.dra import Dra
from elastream.policies.rivals.ds2 import Ds2
from elastream.policies.rivals.ewma import Ewma, Smoothed
from elastream.policies.rivals.flink import Delayed, Flink, Recommendation
from elastream.policies.rivals.groups import HOSTS, Group
from elastream.policies.rivals.hpa import Hpa
from elastream.policies.rivals.rival import Target, host_actions
from elastream.simulator import Emissions, Settings, make_plant
from support.every_policy import GRAPH
from support.fake_plant import SMALL, FakePlant
from support.policy_run import OneRun, driven

RIVALS = ("ds2", "hpa", "flink", "databricks", "dra", "ewma", "daedalus", "contune")
CHAINED_ONLY = ("databricks", "dra", "ewma")
NOW = 10_000.0


def observe(hosts=4, partitions=8, arrival_rate=100.0, **options):
    """Return an observation at NOW of running hosts of one core; records cost 0.01 core-seconds."""
    plant = FakePlant(hosts=hosts, partitions=partitions, arrival_rate=arrival_rate, max_hosts=50, **options)
    plant.clock.sleep_until(NOW - 1)
    plant.observe()
    plant.clock.sleep_until(NOW)
    return plant.observe()


def group(count=4, *, rate=100.0, processed=None, busy=0.5, backlog=0.0, coming=0, changed=0.0, samples=4):
    done = rate if processed is None else processed
    columns = [np.full(samples, value) for value in (rate, done, busy, backlog)]
    return Group(HOSTS, count, coming, changed, NOW - np.arange(samples)[::-1], *columns)


def number(policy, of, memory=None, observation=None):
    return policy.target(of, memory, observation or observe(of.count)).number


@pytest.mark.parametrize(
    ("of", "hosts"),
    [
        (group(4, rate=100.0, busy=0.5), 2),  # 4 hosts process 200/s: 50/s each
        (group(4, rate=100.0, busy=0.74), 4),  # 2.96 are 3: one fewer is no change
        (group(4, rate=300.0, processed=200.0, busy=1.0), 6),
        (group(4, rate=300.0, processed=200.0, busy=1.0, backlog=1e6), 6),  # the backlog counts for nothing
        (group(4, rate=300.0, busy=0.9, changed=NOW - 19), None),  # warming up
        (group(4, rate=0.0, busy=0.0), 1),
        (group(4, rate=100.0, processed=0.0, busy=0.5), None),
    ],
)
def test_ds2_divides_the_rate_by_the_true_rate_of_an_instance(of, hosts):
    assert number(Ds2(), of) == hosts


def test_ds2_takes_the_highest_of_the_intervals_that_must_agree():
    policy = Ds2(activation_time=2)
    first = policy.target(group(4, rate=300.0, processed=200.0, busy=1.0), None, observe())
    assert first.number is None
    assert number(policy, group(4, rate=100.0, busy=0.5), first.memory) == 6


@pytest.mark.parametrize(
    ("count", "coming", "busy", "pods"),
    [
        (4, 0, 0.76, 4),  # within a tenth of 70 %
        (4, 0, 0.64, 4),
        (4, 0, 0.9, 6),  # 4 x 0.9 / 0.7 = 5.1
        (4, 0, 0.3, 2),  # 1.7
        (4, 2, 1.0, 6),  # idle ones included: 4 / 6 / 0.7 is 0.95, within the tolerance
        (4, 4, 0.9, 8),  # those on their way suffice
        (2, 0, 9.0, 6),  # four pods at most, or twice as many
        (10, 0, 9.0, 20),
        (4, 0, 0.0, 1),
    ],
)
def test_hpa_multiplies_the_pods_by_utilisation_over_target(count, coming, busy, pods):
    assert number(Hpa(), group(count, busy=busy, coming=coming)) == pods


def test_hpa_falls_to_the_highest_recommendation_of_five_minutes():
    memory = ((NOW - 299, 3), (NOW - 100, 2))
    assert number(Hpa(), group(4, busy=0.1), memory) == 3
    assert number(Hpa(), group(4, busy=0.1), ((NOW - 300, 3),)) == 1


@pytest.mark.parametrize(
    ("of", "hosts"),
    [
        # 100/s at 70 % and after a restart of 5 min, caught up in 30 min: 143 + 17 = 160/s. The band is 100/s to 267/s.
        (group(4, rate=100.0, busy=0.99), 4),
        (group(4, rate=100.0, processed=90.0, busy=1.0), 8),  # 159.5 / 90 x 4 = 7.1
        (group(4, rate=100.0, busy=0.9, backlog=36_000.0), 7),  # 20/s more: 179.5 / 111 x 4 = 6.5
        (group(4, rate=100.0, busy=0.9, backlog=12_000.0), 4),  # of 2 min: 166 is wanted, and 111 is within the band
        (group(4, rate=100.0, processed=90.0, busy=1.0, changed=NOW - 1199), None),  # 5 min to stabilise, 15 min of metrics
    ],
)
def test_flink_scales_where_the_true_rate_is_outside_the_band(of, hosts):
    assert number(Flink(), of) == hosts


def test_flink_scales_down_to_the_largest_number_of_an_hour():
    idle = group(10, rate=100.0, busy=0.1)
    first = Flink().target(idle, None, observe(10))
    assert first.number == 10
    assert first.memory == Delayed(NOW, (Recommendation(NOW, 4, True),))  # 160 / 1000, but at most 60 % go at once
    since = NOW - 3600
    assert number(Flink(), idle, Delayed(since, (Recommendation(since, 6, True),))) == 6
    assert number(Flink(), idle, Delayed(since - 60, (Recommendation(since - 60, 6, True),))) == 4
    assert number(Flink(), idle, Delayed(since + 60, (Recommendation(since + 60, 6, True),))) == 10


def test_flink_forgets_a_scale_down_once_the_load_is_back():
    delayed = Delayed(NOW - 3000, (Recommendation(NOW - 3000, 2, True),))
    back = Flink().target(group(4, rate=100.0, busy=0.65), delayed, observe())
    assert (back.number, back.memory) == (4, None)


@pytest.mark.parametrize(
    ("partitions", "busy", "since", "hosts"),
    [
        (8, 1.0, NOW - 100, 6),  # 4 busy and (8 - 4) / 2 = 2 waiting tasks on 4 slots
        (8, 0.6, NOW - 100, 4),  # 2.4 and 1.2: they fit
        (8, 0.3, NOW - 100, 3),  # 1.2 and 0.6, filled to 70 %: 2.6
        (8, 0.3, NOW - 30, 4),  # not low for 40 s
        (4, 1.0, NOW - 100, 4),  # no task waits
    ],
)
def test_databricks_counts_busy_slots_and_queued_tasks_alone(partitions, busy, since, hosts):
    observation = with_partitions(observe(4), partitions)
    assert number(Databricks(), group(4, busy=busy, backlog=1e9), Usage(since), observation) == hosts


def test_databricks_keeps_hosts_that_were_used_within_40_seconds():
    observation = with_partitions(observe(4), 8)
    assert number(Databricks(), group(4, busy=0.1), Usage(NOW - 100, ((NOW - 39, 2.1),)), observation) == 3
    assert number(Databricks(), group(4, busy=0.1), Usage(NOW - 100, ((NOW - 40, 2.1),)), observation) == 1


def with_partitions(observation, partitions):
    frame = observation.operators
    columns = {metric: frame.column(metric) for metric in frame.metrics}
    columns[Metric.PARALLELISM] = [partitions if name == "count" else math.nan for name in frame.ids]
    return replace(observation, operators=Frame(frame.ids, columns))


def batch(seconds, records=500.0):
    return MicroBatch("source", NOW - seconds, seconds, records)


@pytest.mark.parametrize(
    ("partitions", "seconds", "hosts"),
    [
        (4, 9.0, 4),  # every task has a slot
        (8, 1.9, 4),  # tasks wait for half of it, 0.95 s
        (8, 2.1, 5),
        (16, 4.1, 11),  # three of four waves, 3.1 s: 1, 2 and 4 more
        (8, 99.0, 8),  # never more than all tasks need
    ],
)
def test_dra_requests_twice_as_many_executors_each_second(partitions, seconds, hosts):
    observation = replace(with_partitions(observe(4), partitions), batches=[batch(seconds)])
    assert number(Dra(), group(4), None, observation) == hosts


def test_dra_removes_an_executor_that_was_idle_for_a_minute():
    run, counts = Dra(), []
    memory = None
    for seconds in (0.0, 30.0, 59.0, 60.0):
        observation = replace(with_cpu(observe(3), {"h1": 0.5, "h2": 0.0, "h3": math.nan}), time=NOW + seconds)
        made = run.target(group(3), memory, observation)
        memory = made.memory
        counts.append(made.number)
    assert counts == [3, 3, 3, 2]


def with_cpu(observation, cpu):
    hosts = Frame(tuple(cpu), {Metric.CPU: list(cpu.values())})
    return replace(with_partitions(observation, 2), hosts=hosts)


@pytest.mark.parametrize(
    ("seconds", "memory", "hosts"),
    [
        (5.0, Smoothed(), 4),  # (0.6 x 1 + 1) / (0.6 + 1) = 1
        (6.0, Smoothed(), 5),  # (0.6 + 1.2) / 1.6 = 1.125 of four
        (3.1, Smoothed(), 4),  # (0.6 + 0.62) / 1.6 = 0.76
        (2.9, Smoothed(), 3),  # (0.6 + 0.58) / 1.6 = 0.74
        (5.0, Smoothed(ratios=5.0, weights=2.5), 7),  # (3 + 1) / (1.5 + 1) = 1.6: 6.4
    ],
)
def test_ewma_multiplies_the_hosts_by_the_smoothed_ratio(seconds, memory, hosts):
    observation = replace(observe(4), batches=[batch(seconds)])
    assert number(Ewma(trigger=5.0), group(4), memory, observation) == hosts


def test_ewma_decides_once_a_batch_and_not_while_hosts_come():
    observation = replace(observe(4), batches=[batch(6.0)])
    assert number(Ewma(trigger=5.0), group(4), Smoothed(ends=NOW + 1), observation) is None
    assert number(Ewma(trigger=5.0), group(4, coming=1), None, observation) is None


@pytest.mark.parametrize(
    ("backlog", "seconds"),
    [(0.0, 2.0), (600.0, 2.5), (1400.0, 6.5)],  # 500 due in 5 s, or all that wait; the last batch had 400; 200/s
)
def test_ewma_predicts_the_batch_of_all_due_records(backlog, seconds):
    observation = replace(observe(4), batches=[batch(1.5, records=400.0)])
    made = Ewma(trigger=5.0).target(group(4, backlog=backlog), None, observation)
    assert made.memory.ratios == pytest.approx(0.6 + seconds / 5)


def test_daedalus_extends_the_line_to_full_utilisation():
    busy = np.array([0.2, 0.4, 0.6, 0.8])
    of = replace(group(4, changed=0.0), busy=busy, processed=4 * (10 + 100 * busy))
    assert with_samples(Knowledge(), of).capacities[4] == pytest.approx(440.0)
    warming = replace(of, changed=NOW - 100)
    assert with_samples(Knowledge(), warming).capacities == {}


def test_daedalus_recovers_once_the_spare_capacity_took_what_waited():
    forecast = np.full(900, 100.0)
    # 10 s to read again, 30 s of restart, 500 waiting: 4,500 records at 100/s to spare.
    assert recovery_time(group(rate=100.0, backlog=500.0), 200.0, forecast, down=False) == 30 + 45
    assert recovery_time(group(rate=100.0, backlog=500.0), 100.0, forecast, down=False) == 3600


@pytest.mark.parametrize(
    ("rate", "ahead", "hosts"),
    [
        (320.0, 320.0, 4),
        (390.0, 390.0, 5),  # four process 400/s, and recover too slowly
        (390.0, 550.0, 6),  # what is forecast for 15 min counts where the number changes,
        (150.0, 450.0, 4),  # and not where it stays
        (99.0, 99.0, 2),
        (90.0, 90.0, 1),
    ],
)
def test_daedalus_takes_the_least_number_that_recovers_in_time(rate, ahead, hosts):
    forecast = np.interp(np.arange(900), [0, 900], [rate, ahead])
    assert Daedalus().least(group(4, rate=rate), {4: 400.0}, forecast, 50) == hosts


def test_daedalus_falls_back_to_a_line_when_the_series_errs():
    rising = replace(group(samples=60), arriving=100.0 + np.arange(60.0))
    assert forecast_of(Knowledge(), rising, 60.0)[[0, 599]] == pytest.approx([160.0, 759.0])
    steady = Knowledge(loads=(100.0,) * 20, expected=129.0)
    assert forecast_of(steady, rising, 60.0)[-1] == pytest.approx(100.0)
    assert forecast_of(replace(steady, expected=500.0), rising, 60.0)[-1] == pytest.approx(759.0)


@pytest.mark.parametrize(
    ("of", "tried", "hosts"),
    [
        (group(4, rate=100.0, busy=1.0, backlog=1001.0), {}, 8),  # big phase
        (group(10, rate=470.0, busy=0.94), {8: (400.0,), 6: (300.0,)}, 10),  # small phase: 500/s at 10, about 450/s at 9
        (group(10, rate=420.0, busy=0.84), {8: (400.0,), 6: (300.0,)}, 9),
        (group(20, rate=100.0, busy=0.1), {18: (900.0,)}, 2),  # too far from numbers tried: DS2
        (group(4, rate=100.0, busy=0.5, changed=NOW - 19), {}, None),
    ],
)
def test_contune_starts_big_and_shrinks_near_what_was_tried(of, tried, hosts):
    assert number(ContTune(), of, tried) == hosts


def test_contune_predicts_numbers_between_those_tried():
    means = predicted(np.array([2.0, 4.0, 8.0]), np.array([200.0, 400.0, 800.0]), np.array([3.0, 6.0]))
    assert means == pytest.approx([300.0, 600.0], rel=0.05)


def leases(plan):
    return [action.host for action in plan.actions if isinstance(action, LeaseHost)]


def test_a_need_leases_hosts_once_and_takes_back_drains_first():
    plant = FakePlant(hosts=3, arrival_rate=400.0, max_hosts=20)
    run = OneRun(Hpa())
    plant.clock.sleep_until(5.0)
    plant.observe()
    plant.apply(DrainHost("h3"))
    plant.clock.sleep_until(6.0)
    plan = run.plan(plant.observe())
    # Three busy cores on two hosts are 2.1 times the target: five hosts. One is draining.
    of_hosts = [type(action) for action in plan.actions if isinstance(action, LeaseHost | CancelDrain | DrainHost)]
    assert of_hosts == [CancelDrain, LeaseHost, LeaseHost]
    for action in plan.actions:
        plant.apply(action)
    plant.clock.sleep_until(7.0)
    assert leases(run.plan(plant.observe())) == []


def test_hosts_go_when_their_paid_time_ends_and_then_are_released():
    plant = FakePlant(hosts=4, arrival_rate=50.0)
    run, gone = OneRun(Hpa(stabilisation=0.0)), []
    for time in range(1, 40):
        plant.clock.sleep_until(float(time))
        for action in run.plan(plant.observe()).actions:
            if isinstance(action, DrainHost | ReleaseHost):
                gone.append((time, type(action)))
            plant.apply(action)
    assert gone[0][1] is DrainHost
    assert (gone[-1][1], gone[-1][0] % 10 <= 8) == (ReleaseHost, True)  # a unit of 10 s, and 2 s to stop


def test_working_hosts_stay_until_the_ones_on_their_way_work():
    plant = FakePlant(hosts=2, arrival_rate=20.0, max_hosts=20)
    for host in ("h3", "h4", "h5"):
        plant.apply(LeaseHost(host, "small"))
    plant.clock.sleep_until(1.0)
    plant.observe()
    plant.clock.sleep_until(3.9)
    observation = plant.observe()
    assert len(observation.coming) == 3
    actions = host_actions(observation, Target(2, why="less load"), SMALL, pace=6.0)
    assert not [action for action in actions if isinstance(action, DrainHost)]


def test_a_host_type_that_does_not_exist_is_named():
    reason = Hpa(host_type="huge").unsupported_reason(observe().context)
    assert reason == "there is no host type 'huge' (there are: small, big)"


@pytest.mark.parametrize("name", RIVALS)
def test_unknown_metrics_are_named_and_decide_nothing(name):
    observation = observe(4)
    nothing = Frame(observation.operators.ids, {})
    plan = made(POLICY, name, {}, References(Path())).plan(replace(observation, operators=nothing))
    assert not [action for action in plan.actions if isinstance(action, LeaseHost | DrainHost | ReleaseHost)]
    assert Unknown(Metric.BUSY_CORES, Rows.OPERATOR) in plan.unknown


@pytest.mark.parametrize("name", CHAINED_ONLY)
def test_rivals_that_count_tasks_refuse_operators_with_queues(name):
    context = replace(observe().context, layout=lay_out(GRAPH, chained=False))
    assert "micro-batches" in made(POLICY, name, {}, References(Path())).unsupported_reason(context)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hpa:target_utilisation=1.2", "target_utilisation is 1.2; it must be above 0, and at most 1"),
        ("ds2:policy_interval=0", "policy_interval is 0; it must be above 0, and finite"),
        ("flink:catch_up=-1", "catch_up is -1; it must be 0 or more, and finite"),
        ("ewma:threshold_low=2", "threshold_low is 2, above threshold_high (1)"),
        ("contune:alpha=-1", "alpha is -1; it must be 0 or more, and finite"),
    ],
)
def test_a_parameter_outside_its_range_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(ElastreamError) as error:
        made(POLICY, *named_in(text, POLICY), References(Path()))
    assert sentence.removeprefix(f"{text.partition(':')[2].partition('=')[0]}: ") in str(error.value)


def simulated(chained):
    kind = HostType("vm", cores=1.0, billing=Billing(1.0), start=5.0, stop=1.0)
    return make_plant(
        lay_out(GRAPH, chained=chained),
        host_types=[kind],
        hosts=2,
        parallelism={} if chained else {"split": 1, "count": 1},
        loads={"lines": Emissions.every(1.0, np.repeat([100, 900], [60, 240]), spread=True)},
        settings=Settings(monitor=1.0),
        max_hosts=12,
        target_latency=10.0,
        seed=1,
    )


FAST = {
    "flink": {"metrics_window": 10.0, "stabilization_interval": 5.0, "interval": 5.0},
    "daedalus": {"loop_time": 5.0},
}
"""Shorter periods for rivals that decide after minutes at the earliest."""


@pytest.mark.parametrize(
    ("name", "chained"),
    [(name, chained) for name in RIVALS for chained in (True, False) if chained or name not in CHAINED_ONLY],
)
def test_a_rising_load_gets_more_hosts_in_simulation(name, chained):
    policy = made(POLICY, name, FAST.get(name, {}), References(Path()))
    plant, most = simulated(chained), 0
    for observation, plan in driven(plant, policy, np.arange(2.0, 290.0, 2.0)):
        most = max(most, len(observation.usable))
        assert plan.unknown == () or observation.time < 30
    assert most > 2
