"""Lulls between bursts that end before new hosts are ready: simulated, and as they are remembered."""

import numpy as np
import pytest

from elastream import Alternate
from elastream.core.action import LeaseHost
from elastream.core.hosts import Billing, HostType
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.stages import lay_out
from elastream.evaluation.trials import simulated
from elastream.loads import steps
from elastream.policies.threshold import Threshold
from elastream.simulator import Settings, make_plant

MINUTE = 60.0


def same(row):
    return row


def run(levels, every, *, start, chained=False, period=60.0, policy=None):
    """Simulate `levels` (records/s) of 2 ms a record, each for `every` seconds."""
    host = HostType("small", 1.0, price=1 / 3600, billing=Billing(1.0), start=start)
    load = steps(*levels, every=every)
    flow = Dataflow("d")
    flow.source(None, load=load, name="source").map(
        [Alternate("a", same, cost=0.002)], returns="k string", name="work", cores=0.25
    ).sink(None)
    plant = make_plant(
        lay_out(flow.graph, chained=chained), host_types=[host], loads={"source": load}, seed=1, max_hosts=40,
        settings=Settings(monitor=min(period, 15.0)), target_latency=30.0, seconds=load.seconds,
    )  # fmt: skip
    return simulated(plant, policy or Threshold(), period=period, until=load.seconds)


def in_time_after(done, seconds):
    series = done.result.series
    later = series[(series[:, 0] > seconds) & (series[:, 6] > 0)]
    return float(np.average(later[:, 5], weights=later[:, 6]))


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize(("every", "start"), [(2 * MINUTE, 5 * MINUTE), (1 * MINUTE, 2 * MINUTE)])
def test_hosts_that_come_too_late_stay_for_the_next_burst(every, start, chained):
    done = run([100, 2000, 100, 100] * 6, every, start=start, chained=chained, period=15.0 if chained else 60.0)
    assert in_time_after(done, 12 * every) > 0.99
    mean = np.mean(done.result.series[:, 2])
    assert mean <= 1.15 * 6  # hosts that the peak fills to 70 %
    leases = [d.time for d in done.decisions for each in d.proposals if isinstance(each.action, LeaseHost)]
    assert max(leases) < 12 * every


def test_bursts_of_two_heights_are_both_served():
    done = run([100, 2000, 100, 100, 100, 1000, 100, 100] * 4, 2 * MINUTE, start=5 * MINUTE)
    assert in_time_after(done, 34 * MINUTE) > 0.99


def test_hosts_go_after_a_single_burst():
    done = run([100, 2000, *[100] * 20], 2 * MINUTE, start=5 * MINUTE)
    assert done.result.series[-1, 2] == 1


def test_a_settle_of_the_user_is_kept():
    done = run([100, 2000, 100, 100] * 4, 2 * MINUTE, start=5 * MINUTE, policy=Threshold(settle=60.0))
    assert done.result.early_releases > 10
