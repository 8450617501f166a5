"""State that grows without end gets a larger host before the small ones are full, under every policy for hosts."""

from dataclasses import replace

import numpy as np
import pytest

from elastream.control.loop import Loop
from elastream.control.state_hosts import NEARLY
from elastream.core.action import LeaseHost
from elastream.core.frames import Frame
from elastream.core.hosts import Billing, HostType
from elastream.core.memory import memory_uses
from elastream.core.metrics import Metric
from elastream.core.scaling import ScalingRules
from elastream.dataflow.stages import lay_out
from elastream.policies.by_load import ByLoad
from elastream.policies.horizon.policy import Horizon
from elastream.policies.threshold import Threshold
from elastream.simulator import Emissions, Settings, make_plant
from support.every_policy import GRAPH, Seen

ROUND = 20.0
HOURS = 4
GROWTH = 300.0 / 3600.0
HEAP = 300.0
SMALL = HostType("small", cores=2.0, memory=1000.0, slots=2, price=1.0, billing=Billing(60.0), start=60.0, stop=2.0)
LARGE = replace(SMALL, name="large", memory=4000.0, price=2.0)


class Growing:
    """A simulated plant whose state in RocksDB grows from nothing at GROWTH MB/s."""

    def __init__(self, plant):
        self._plant = plant

    def __getattr__(self, name):
        return getattr(self._plant, name)

    def observe(self):
        seen = self._plant.observe()
        names, hosts = seen.operators.ids, seen.hosts
        keyed = [GROWTH * seen.time if name in seen.context.partitions else np.nan for name in names]
        operators = {metric: seen.operators.column(metric) for metric in seen.operators.metrics}
        limits = [seen.leases[host].type.memory for host in hosts.ids]
        memory = {
            Metric.HEAP_LIMIT: [HEAP] * len(limits),
            Metric.MEMORY_LIMIT: limits,
            Metric.MEMORY: [np.nan] * len(limits),
        }
        columns = {metric: hosts.column(metric) for metric in hosts.metrics}
        return replace(
            seen,
            operators=Frame(names, operators | {Metric.STATE_OFF_HEAP: keyed}),
            hosts=Frame(hosts.ids, columns | memory),
        )


@pytest.fixture(scope="module", params=[Threshold, Horizon, ByLoad], ids=["threshold", "horizon", "by load"])
def run(request):
    plant = make_plant(
        lay_out(GRAPH, chained=True),
        host_types=[SMALL, LARGE],
        hosts=1,
        loads={"lines": Emissions.every(1.0, np.repeat([50], HOURS * 3600), spread=True)},
        settings=Settings(monitor=ROUND, state_partitions=12),
        max_hosts=6,
        target_latency=5.0,
        seed=1,
    )
    seen = Seen()
    loop = Loop(
        Growing(plant),
        request.param(),
        monitor=ROUND,
        period=ROUND,
        observers=[seen],
        limit=HOURS * 3600.0,
        scaling=ScalingRules(tolerance=0.5, stabilization_up=600.0),
    )
    loop.run()
    return seen


def test_larger_type_is_leased_before_hosts_are_full(run):
    leases = [p for d in run.recording.decisions for p in d.proposals if isinstance(p.action, LeaseHost)]
    assert [(each.by, each.action.type, each.refused) for each in leases] == [("memory", "large", "")], "one is enough"
    for observation in run.observations:
        for use in memory_uses(observation):
            assert (use.used <= (1 - NEARLY) * use.limit + 1.0).all(), observation.time


def test_leased_host_stays_and_takes_the_state(run):
    last = run.observations[-1]
    (use,) = memory_uses(last)
    assert use.total > SMALL.memory - HEAP, "more than a small host holds"
    assert "large" in [last.leases[host].type.name for host in last.usable]
