"""How far hosts can help a query whose state partitions are fixed: whole runs, simulated, and the rule by itself."""

import numpy as np
import pytest

from elastream import Dataflow, HostType, simulate
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import lay_out
from elastream.evaluation.compare import compare
from elastream.loads import constant
from elastream.policies.common.provision import declared_cores
from elastream.policies.common.reach import beyond_partitions
from elastream.policies.threshold import Threshold
from elastream.settings import SimulateSettings
from elastream.simulator import Settings, Travel

HOST = HostType("small", cores=1, price=0.1, start="20s")
COST = 6e-5


def keyed(load):
    """Records of which each works `COST` core-seconds in an operator with state."""
    flow = Dataflow("keyed")
    clicks = flow.source(records([{"user": "a"}], "user string"), load=load)
    clicks.key_by("user").count(cost=COST).sink(collect("seen"))
    return flow


def tried(rate, partitions, **more):
    return simulate(
        keyed(constant(rate, lasts="6m")), Threshold(), host_types=[HOST], target_latency="10s", fused=True, max_hosts=60,
        state_partitions=partitions, show=False, **more,
    )  # fmt: skip


def test_default_state_partitions_are_as_many_as_hosts_can_use():
    found = tried(400_000, None)  # 24 cores of work
    assert found.trials[0].compliance > 0.7
    assert found.trials[0].result.series[-1, 2] > 24
    assert "state partition" not in found.verdict


def test_hosts_that_partitions_cannot_use_are_not_leased():
    found = tried(600_000, 16)  # 36 cores of work
    assert found.trials[0].peak_hosts <= 17
    assert "more hosts cannot keep up with" in found.verdict
    assert (
        "count has 16 state partitions, and each keeps one slot busy at most: give more (state_partitions)" in found.verdict
    )
    assert "costs" in found.verdict
    assert "but at the peak 36 cores of 'count' are more than any number of hosts holds" in found.verdict


def test_hosts_that_a_heavy_key_cannot_use_are_not_leased():
    weights = np.ones(64)
    weights[9] = 64.0  # half of all records
    settings = Settings(monitor=1.0, travel=Travel.COHORTS, state_partitions=64, shares={"count": weights})
    steps = constant(20_000, lasts="2m").then(constant(400_000, lasts="4m"))
    found = compare(
        keyed(steps).graph,
        {"threshold": Threshold()},
        SimulateSettings(host_types=[HOST], target_latency=10.0, max_hosts=60, fused=True),
        constants=settings,
    )
    (trial,) = found.trials
    assert "state partition 9 of count has 50% of its work" in trial.remarked
    assert trial.peak_hosts < 8


@pytest.mark.parametrize(("partitions", "held"), [(24, True), (23, False)])
def test_work_exceeds_partitions_if_each_needs_more_than_a_slot(partitions, held):
    flow = keyed(constant(400_000))
    cores = declared_cores(flow.graph, {"source": 400_000.0})
    assert (beyond_partitions(lay_out(flow.graph), cores, HOST.slot, partitions) == "") is held
    assert beyond_partitions(lay_out(flow.graph, chained=False), cores, HOST.slot, 1) == ""
