"""Every policy plans in process: one host, and no action on hosts, state or links."""

from dataclasses import replace

import pytest

from elastream.control.loop import Loop
from elastream.policies.static import Static
from support.every_policy import EVERY, Seen, plant

IN_PROCESS = frozenset({"SwitchAlternate", "SwitchEdge", "SetKeyTable", "SetParallelism"})


@pytest.mark.parametrize("name", EVERY)
def test_every_policy_plans_where_hosts_are_fixed(name):
    policy, observer = EVERY[name](), Seen()
    simulated = plant(name, [100] * 2 + [900] * 3)
    Loop(simulated, Static(hosts=2), monitor=5.0, period=5.0, observers=[observer]).run()
    memory = None
    for observation in observer.observations:
        hosts = len(observation.leases)
        context = replace(observation.context, max_hosts=hosts, min_hosts=hosts, capabilities=IN_PROCESS)
        plan = policy.plan(replace(observation, context=context), memory)
        memory = plan.memory
        assert not any(action.kind == "LeaseHost" for action in plan.actions), name
