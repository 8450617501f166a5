"""Simulated plants that problems are read from, and in which plans are enacted."""

from collections.abc import Mapping, Sequence
from typing import Any

from elastream.core.action import Status
from elastream.core.hosts import Billing, HostType
from elastream.core.observation import Observation
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.loads import constant
from elastream.policies.value_cost.policy import enacted
from elastream.policies.value_cost.problem import Deployment, Goal
from elastream.policies.value_cost.reading import Situation, WorkHistory, read
from elastream.simulator import Settings, SimulatedPlant, Travel, make_plant

TEN_MINUTES = Billing(600.0)
ONE = HostType("one", cores=1.0, price=1.0, billing=TEN_MINUTES, start=30.0, stop=5.0)
FOUR = HostType("four", cores=4.0, price=3.0, billing=TEN_MINUTES, start=30.0, stop=5.0)
FAST = HostType("fast", cores=2.0, speed=2.0, price=3.0, billing=TEN_MINUTES, start=30.0, stop=5.0)
KINDS = (ONE, FOUR, FAST)
INSTANT = 60.0

SCORE = (Alternate("best", value=1.0, cost=0.02), Alternate("quick", value=0.5, cost=0.005, selectivity=0.5))


def graph(score: Sequence[Alternate] = SCORE) -> Graph:
    """Source -> score (best, or quick with half the records) -> count -> sink."""
    return Graph(
        "grid",
        (
            Operator("source", Kind.SOURCE),
            Operator("score", alternates=tuple(score)),
            Operator("count", alternates=(Alternate("count", cost=0.01),)),
            Operator("sink", Kind.SINK),
        ),
        (Edge("source", "score"), Edge("score", "count"), Edge("count", "sink")),
    )


def plant(
    rate: float = 100.0,
    hosts: Sequence[str] = ("four",),
    parallelism: Mapping[str, int] | None = None,
    *,
    of: Graph | None = None,
    fused: bool = False,
    seconds: float = 7200.0,
    **options: Any,
) -> SimulatedPlant:
    """At a constant rate, an instance of each operator unless said otherwise; `options` are of `make_plant`."""
    given = options.pop("settings", {})
    settings = {"travel": Travel.COHORTS, "cohorts_above": 0, "latency": 0.0, "host_start_spread": 0.0} | given
    return make_plant(
        lay_out(of or graph(), chained=fused),
        host_types=KINDS,
        loads={"source": constant(rate, seconds)},
        hosts=list(hosts),
        parallelism=parallelism or {},
        settings=Settings(monitor=10.0, **settings),
        seconds=seconds,
        **options,
    )


def seen(plant: SimulatedPlant, goal: Goal | None = None, history: WorkHistory | None = None) -> Situation:
    """What is read of the plant now."""
    return read(plant.observe(), goal or Goal(), INSTANT, history)


def done(plant: SimulatedPlant, observation: Observation, at: Situation, wanted: Deployment, pace: float = INSTANT) -> int:
    """Enact `wanted`, all of which must be possible; the number of actions."""
    actions = enacted(observation, at.problem, wanted, pace=pace)
    for action in actions:
        outcome = plant.apply(action)
        assert outcome.status in (Status.DONE, Status.ACCEPTED), outcome
        assert plant.apply(action).status in (Status.DONE, Status.ACCEPTED), action  # absolute: twice is once
    return len(actions)


def totals(deployment: Deployment) -> list[int]:
    """Instances by operator."""
    found: list[int] = deployment.instances.sum(axis=0).tolist()
    return found
