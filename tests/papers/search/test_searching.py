"""The policies that search whole plans, in the loop of a simulated plant."""

from dataclasses import dataclass, field

import pytest

from elastream.control.loop import Loop
from elastream.core.action import LeaseHost, SwitchAlternate
from elastream.core.hosts import Billing, HostType
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.policies.value_cost.policy import SearchRequest, SearchResult, ValueCost
from elastream.policies.value_cost.problem import Goal, score
from elastream.policies.value_cost.reading import read
from elastream.recording.recorder import Collector
from elastream.simulator import Emissions, Settings, Travel, make_plant
from elastream_papers.search.policies import Exhaustive, Genetic, Hybrid
from elastream_papers.search.proven import optimum
from support.policy_run import OneRun

GRAPH = Graph(
    "readings",
    (
        Operator("readings", Kind.SOURCE, cores=0.0),
        Operator(
            "classify",
            alternates=(Alternate("fine", value=1.0, cost=0.1), Alternate("coarse", value=0.6, cost=0.04)),
        ),
        Operator("count", alternates=(Alternate("count", cost=0.02),)),
        Operator("out", Kind.SINK, cores=0.0),
    ),
    (Edge("readings", "classify"), Edge("classify", "count"), Edge("count", "out")),
)
TYPES = (
    HostType("small", cores=1.0, price=1.0, billing=Billing(3600.0), start=30.0),
    HostType("large", cores=4.0, price=3.6, billing=Billing(3600.0), start=30.0),
)
BRIEF = {"population": 20, "generations": 15}
EVERY = {
    "genetic": lambda **more: Genetic(**BRIEF, **more),
    "hybrid": lambda **more: Hybrid(**BRIEF, **more),
    "exhaustive": Exhaustive,
}


def plant(rate, *, types=TYPES, max_hosts=20):
    return make_plant(
        lay_out(GRAPH, chained=False),
        host_types=types,
        hosts=["large"],
        loads={"readings": Emissions.every(1.0, [rate] * 3600, spread=True)},
        settings=Settings(monitor=30.0, travel=Travel.COHORTS),
        max_hosts=max_hosts,
        seed=1,
    )


class Last(Collector):
    """Keeps what was observed last."""

    def observed(self, observation):
        super().observed(observation)
        self.observation = observation


def looped(policy, rate, rounds=8, **more):
    """The decisions of a run of some rounds, and what is observed in the end."""
    seen = Last()
    Loop(plant(rate, **more), policy, monitor=30.0, period=60.0, observers=[seen], limit=60.0 * rounds).run()
    return seen.recording.decisions, seen.observation


def first_plan(policy, rate, **more):
    """The first plan of a policy, once the rates are known, and what it was made from."""
    there, run = plant(rate, **more), OneRun(policy)
    there.clock.sleep_until(60.0)
    observation = there.observe()
    return run.plan(observation), observation


@pytest.mark.parametrize("name", EVERY)
def test_it_leases_what_the_load_needs_and_then_leaves_it(name):
    decisions, last = looped(EVERY[name](), 30, rounds=12)
    assert not [decision for decision in decisions if decision.faults]
    proposed = [[each.action for each in decision.proposals] for decision in decisions]
    assert any(isinstance(action, LeaseHost) for plan in proposed for action in plan)
    found = read(last, Goal(), 60.0)
    assert score(found.problem, found.deployment, found.conditions).feasible(Goal())
    assert not any(proposed[-2:]), "nothing changes any more, and yet the plan does"


@pytest.mark.parametrize("name", EVERY)
def test_an_alternate_that_is_not_worth_its_cores_does_not_run(name):
    policy = EVERY[name](break_even_best=1.0, break_even_worst=0.5)
    plan, _ = first_plan(policy, 60)
    switches = [action for action in plan.actions if isinstance(action, SwitchAlternate)]
    assert [(each.operator, each.alternate) for each in switches] == [("classify", "coarse")]


def test_exhaustive_leases_no_more_than_the_optimum():
    plan, observation = first_plan(Exhaustive(instant=60.0), 30)
    found = read(observation, Goal(), 60.0)
    best = optimum(found.problem, found.conditions, current=found.deployment)
    wanted = sorted(host.type.name for host in best.deployment.hosts if not host.name)
    assert sorted(action.type for action in plan.actions if isinstance(action, LeaseHost)) == wanted


@pytest.mark.parametrize("name", EVERY)
def test_what_no_plan_reaches_is_said(name):
    plan, _ = first_plan(EVERY[name](), 1000, max_hosts=2)
    assert any("throughput" in remark for remark in plan.remarks)
    assert sum(isinstance(action, LeaseHost) for action in plan.actions) == 1


@dataclass(frozen=True)
class Asking(ValueCost):
    """Notes which stages it is time for, and leaves the plan as it is."""

    seen: list[tuple[bool, bool]] = field(default_factory=list)

    def search(self, request: SearchRequest) -> SearchResult:
        self.seen.append((request.alternates, request.resources))
        return SearchResult(request.situation.deployment, "")


@pytest.mark.parametrize(
    ("every", "stages"), [(1, [(True, True)] * 4), (2, [(True, False), (False, True), (True, False), (False, True)])]
)
def test_alternates_and_hosts_are_planned_in_turns(every, stages):
    policy = Asking(alternates=every, resources=every)
    looped(policy, 30, rounds=5)
    assert policy.seen[:4] == stages
