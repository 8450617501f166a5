"""Every policy that can be named, on a small dataflow of three operators: what properties of all policies are tried on."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from elastream.control.loop import Loop
from elastream.core.action import Action, Outcome, Status
from elastream.core.hosts import Billing, HostType
from elastream.core.observation import Observation
from elastream.core.plant import Policy
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import POLICY, imported
from elastream.policies.by_load import ByLoad
from elastream.recording.recorder import Collector
from elastream.simulator import Emissions, SimulatedPlant, make_plant
from elastream_papers.tasks import TaskNetwork, TaskSettings

EVERY: dict[str, Callable[[], Policy]] = {name: imported(path) for name, path in POLICY.known.items()}
EVERY |= {"static": lambda: imported(POLICY.known["static"])(3), "by load": ByLoad}
BRIEF = {"population": 4, "generations": 2}
EVERY |= {name: partial(EVERY[name], **BRIEF) for name in ("genetic", "hybrid")}

GRAPH = Graph(
    "words",
    (
        Operator("lines", Kind.SOURCE, record_bytes=100.0),
        Operator(
            "split",
            alternates=(Alternate("split", value=0.5, cost=2e-3, selectivity=2.0),),
            record_bytes=20.0,
            max_duration=0.5,
        ),
        Operator("count", Kind.KEYED, (Alternate("count", cost=1e-3),), key=("word",), max_duration=0.5, cores=0.5),
        Operator("out", Kind.SINK, cores=0.0),
    ),
    (Edge("lines", "split"), Edge("split", "count", Delivery.KEYED), Edge("count", "out")),
)
CHOOSING = replace(
    GRAPH,
    operators=tuple(
        replace(o, alternates=(*o.alternates, Alternate("finer", value=1.0, cost=5e-3, selectivity=2.0)))
        if o.name == "split"
        else o
        for o in GRAPH.operators
    ),
)
"""The same with something to choose from: the finer one is carried while the load is low."""
ROUND = 5.0
RISING = [100] * 4 + [900] * 8 + [50] * 8


CHAINED = ("threshold", "by load", "highest_value", "dra", "databricks", "ewma", "flink", "daedalus")
"""Policies that need micro-batches, or that decide nothing else within the loads below."""


def plant(name: str, loads: list[int]) -> SimulatedPlant:
    """A load in records/s, round by round, on hosts that come up within three rounds; as the policy `name` wants it.

    Where operators run apart, nothing measures what sources process, without which Threshold does nothing.
    """
    return make_plant(
        lay_out(CHOOSING if name == "highest_value" else GRAPH, chained=name in CHAINED),
        host_types=[HostType("vm", cores=2.0, slots=8, bandwidth=1e6, billing=Billing(60.0), start=12.0, stop=2.0)],
        hosts=2,
        parallelism={"split": 2, "count": 3},
        loads={"lines": Emissions.every(1.0, np.repeat(loads, int(ROUND)), spread=True)},
        network=TaskNetwork,
        settings=TaskSettings(monitor=ROUND),
        max_hosts=6,
        seed=1,
    )


class Seen(Collector):
    """Keeps the observations themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.observations: list[Observation] = []

    def observed(self, observation: Observation) -> None:
        self.observations.append(observation)


class Shown:
    """A plant that shows what another run observed, and carries out nothing."""

    def __init__(self, observations: list[Observation]) -> None:
        self.observations = iter(observations)
        self.clock = self
        self.context, self.ledger, self.finished, self._at = observations[0].context, (), False, observations[0].time

    def now(self) -> float:
        return self._at

    def sleep_until(self, time: float) -> None:
        self._at = time

    def observe(self) -> Observation:
        return next(self.observations)

    def apply(self, action: Action) -> Outcome:
        return Outcome(action, Status.REFUSED, "for show")

    def incidents(self) -> tuple[str, ...]:
        return ()

    def close(self) -> None: ...


def looped(policy: Policy, on: SimulatedPlant | Shown, rounds: int) -> Seen:
    seen = Seen()
    on.clock.sleep_until(ROUND)
    Loop(on, policy, monitor=ROUND, period=ROUND, observers=[seen], limit=ROUND * rounds).run()
    return seen


def answers(seen: Seen) -> list[tuple[object, ...]]:
    """What the policy said round by round, and what broke."""
    return [(d.time, d.proposals, d.predicted, d.note, d.faults, d.unknown) for d in seen.recording.decisions]
