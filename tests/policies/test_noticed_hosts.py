"""A host that is taken away after a notice is left in time and replaced, whatever policy plans."""

import numpy as np
import pytest

from elastream.control.loop import Loop
from elastream.core.hosts import Billing, HostState, HostType
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, HostFailure, Settings, make_plant
from support.every_policy import CHAINED, EVERY, GRAPH, ROUND, Seen

HOST = HostType("host", cores=2.0, memory=1000.0, slots=2, billing=Billing(60.0), start=12.0, stop=2.0)
ROUNDS = 40
AT = 40.0


def ended(name, notice):
    rates = np.repeat([200], [ROUNDS * int(ROUND)])
    plant = make_plant(
        lay_out(GRAPH, chained=True),
        host_types=[HOST],
        hosts=2,
        loads={"lines": Emissions.every(1.0, rates, spread=True)},
        settings=Settings(monitor=ROUND, state_partitions=12, faults=(HostFailure(AT, "h1", notice),)),
        max_hosts=6,
        target_latency=5.0,
        seed=1,
    )
    seen = Seen()
    Loop(plant, EVERY[name](), monitor=ROUND, period=ROUND, observers=[seen], limit=ROUND * ROUNDS).run()
    return plant.ledger[0], seen.observations


@pytest.mark.parametrize("name", CHAINED)
def test_host_with_a_notice_is_never_lost_and_work_goes_on(name):
    lease, observations = ended(name, notice=30.0)
    assert lease.state is HostState.RELEASED
    assert lease.until < AT
    assert all(each.usable for each in observations if each.time > AT)


def test_host_without_a_notice_is_lost():
    assert ended("threshold", notice=0.0)[0].state is HostState.LOST
