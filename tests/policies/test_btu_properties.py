"""What holds of every plan of VISP's policies, whatever was observed or not."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.arbitration import arbitrate
from elastream.core.action import KINDS, LeaseHost, MoveTask, ReleaseHost, SetParallelism
from elastream.core.decision import Proposal
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.policies.btu import Btu
from elastream.policies.queue_threshold import QueueThreshold
from support.property_examples import examples
from support.visp_observations import lease, observe, operator

OPERATORS = [operator("a", cores=0.7, memory=500), operator("b", cores=0.1, memory=450), operator("c", 1.5, 900, None)]
NAMES = [each.name for each in OPERATORS]
VALUES = st.one_of(st.just(math.nan), st.floats(0, 1000))
STATES = st.sampled_from([HostState.RUNNING, HostState.STARTING, HostState.DRAINING, HostState.RELEASING])


@st.composite
def observations(draw):
    hosts = [f"h{k + 1}" for k in range(draw(st.integers(1, 5)))]
    placed = {host: draw(st.lists(st.sampled_from(NAMES), max_size=4)) for host in hosts}
    leases = [lease(host, draw(st.floats(0, 600)), draw(STATES)) for host in hosts]
    known = st.dictionaries(st.sampled_from([Metric.DURATION, Metric.BACKLOG, Metric.SCALINGS]), VALUES)
    metrics = {name: draw(known) for name in NAMES}
    earlier = draw(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=5))
    return observe(OPERATORS, placed, time=600.0, metrics=metrics, earlier=earlier, leases=leases)


@pytest.mark.parametrize("policy", [Btu(), QueueThreshold()], ids=lambda policy: policy.name)
@given(observation=observations())
@settings(max_examples=examples(150))
def test_a_plan_never_raises_nor_overfills_a_host_nor_ends_an_operator(policy, observation):
    actions = policy.plan(observation).actions
    needs = {each.name: (each.cores, each.memory) for each in OPERATORS}
    host_of = {
        task: tuple(observation.leases)[row]
        for task, row in zip(observation.tasks.tasks, observation.tasks.host.tolist(), strict=True)
    }
    held = {host: [task.operator for task, on in host_of.items() if on == host] for host in observation.leases}
    before = {host: list(names) for host, names in held.items()}
    for action in actions:
        match action:
            case SetParallelism(name, instances, on, without):
                assert instances >= 1
                for task in without:
                    held[host_of[task]].remove(name)
                for host in on:
                    held[host].append(name)
            case MoveTask(task, host):
                held[host_of[task]].remove(task.operator)
                held[host].append(task.operator)
                host_of[task] = host
            case LeaseHost(host):
                held[host], before[host] = [], []
            case ReleaseHost(host):
                assert not held[host]
    for host, names in held.items():
        if names != before[host]:
            cores, memory = (sum(needs[name][k] for name in names) for k in (0, 1))
            assert cores <= 4 + 1e-6 or cores <= sum(needs[name][0] for name in before[host])
            assert memory <= 7000 + 1e-6 or memory <= sum(needs[name][1] for name in before[host])


@pytest.mark.parametrize("policy", [Btu(), QueueThreshold()], ids=lambda policy: policy.name)
@given(observation=observations())
@settings(max_examples=examples(150))
def test_arbitration_refuses_nothing_of_a_plan(policy, observation):
    able = replace(observation, context=replace(observation.context, capabilities=frozenset(KINDS)))
    plan = policy.plan(able)
    decided = arbitrate([Proposal(action, policy.name) for action in plan.actions], able)
    assert [(p.action, p.refused) for p in decided if p.refused] == []
