"""State that needs two hosts keeps two hosts, whatever a policy wants."""

from dataclasses import replace

import numpy as np
import pytest

from elastream.control.loop import Loop
from elastream.core.hosts import Billing, HostType
from elastream.dataflow.operators import Kind
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, make_plant
from support.every_policy import CHAINED, EVERY, GRAPH, ROUND, Seen

# Twelve partitions share 1,000 MB, of which a host may fill 900.
STATE_MB = 1000.0
HOST = HostType("host", cores=2.0, memory=1000.0, slots=2, billing=Billing(60.0), start=12.0, stop=2.0)
ROUNDS = 60


def falling(megabytes):
    operators = tuple(
        replace(each, memory=megabytes, max_duration=None) if each.kind is Kind.KEYED else replace(each, max_duration=None)
        for each in GRAPH.operators
    )
    rates = np.repeat([600, 20], [10 * int(ROUND), (ROUNDS - 10) * int(ROUND)])
    return make_plant(
        lay_out(replace(GRAPH, operators=operators), chained=True),
        host_types=[HOST],
        hosts=4,
        loads={"lines": Emissions.every(1.0, rates, spread=True)},
        settings=Settings(monitor=ROUND, state_partitions=12),
        max_hosts=6,
        target_latency=5.0,
        seed=1,
    )


def fewest(name, megabytes):
    seen = Seen()
    Loop(falling(megabytes), EVERY[name](), monitor=ROUND, period=ROUND, observers=[seen], limit=ROUND * ROUNDS).run()
    refusals = [each.refused for d in seen.recording.decisions for each in d.proposals]
    return min(len(each.usable) for each in seen.observations), [each for each in refusals if each.startswith("memory: ")]


@pytest.mark.parametrize("name", CHAINED)
def test_hosts_that_hold_state_stay_when_the_load_falls(name):
    hosts, refusals = fewest(name, STATE_MB)
    assert hosts >= 2
    assert all("carry the load" in each for each in refusals)


def test_without_state_the_same_load_takes_fewer_hosts():
    assert fewest("threshold", 0.0)[0] < 2


def test_decision_says_what_load_and_state_need():
    refusals = fewest("threshold", STATE_MB)[1]
    assert any(each.startswith("memory: 1 host would carry the load, 2 carry the state") for each in refusals)
