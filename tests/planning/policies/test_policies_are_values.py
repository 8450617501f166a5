"""Every policy that can be named is a value: one object serves any number of runs, and none of them notices the others."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.loop import Loop
from elastream.documents.registry import POLICY, imported
from elastream.model.action import Action, Outcome, Status
from elastream.model.cloud import Billing, HostType
from elastream.model.graph import Alternate, Delivery, Edge, Graph, Kind, Operator
from elastream.model.observation import Observation
from elastream.model.plant import Policy
from elastream.model.stages import lay_out
from elastream.planning.policies.by_load import ByLoad
from elastream.recording.recorder import Collector
from elastream.simulation import Emissions, Settings, SimulatedPlant, Travel, make_plant
from one_run import OneRun
from properties import examples

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


def plant(name: str, loads: list[int]) -> SimulatedPlant:
    """A load in records/s, round by round, on hosts that come up within three rounds; as the policy `name` wants it.

    Where operators run apart, nothing measures what sources process, without which Threshold does nothing.
    """
    return make_plant(
        lay_out(CHOOSING if name == "highest_value" else GRAPH, fused=name in ("threshold", "by load", "highest_value")),
        host_types=[HostType("vm", cores=2.0, slots=8, bandwidth=1e6, billing=Billing(60.0), start=12.0, stop=2.0)],
        hosts=2,
        parallelism={"split": 2, "count": 3},
        loads={"lines": Emissions.every(1.0, np.repeat(loads, int(ROUND)), spread=True)},
        settings=Settings(monitor=ROUND, travel=Travel.TASKS),
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

    def close(self) -> None: ...


def looped(policy: Policy, on: SimulatedPlant | Shown, rounds: int) -> Seen:
    seen = Seen()
    on.clock.sleep_until(ROUND)
    Loop(on, policy, monitor=ROUND, period=ROUND, observers=[seen], limit=ROUND * rounds).run()
    return seen


def answers(seen: Seen) -> list[tuple[object, ...]]:
    """What the policy said round by round, and what broke."""
    return [(d.time, d.proposals, d.predicted, d.note, d.faults, d.unknown) for d in seen.recording.decisions]


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_holds_settings_only_and_none_of_them_can_be_set(name: str) -> None:
    policy = EVERY[name]()
    assert is_dataclass(policy)
    for field in fields(policy):
        assert field.init, f"{field.name} is no setting"
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(policy, field.name, None)


@pytest.mark.parametrize("name", EVERY)
def test_a_policy_decides_something_here_so_that_the_property_below_says_something(name: str) -> None:
    if name == "even":
        pytest.skip("tasks are placed evenly from the start")
    seen = looped(EVERY[name](), plant(name, RISING), 19)
    assert any(d.proposals for d in seen.recording.decisions)


@pytest.mark.parametrize("name", EVERY)
@given(loads=st.lists(st.sampled_from([0, 50, 300, 900]), min_size=4, max_size=16))
@settings(max_examples=examples(20))
def test_one_object_answers_two_loops_alike_one_after_the_other_and_in_turns(name: str, loads: list[int]) -> None:
    policy, rounds = EVERY[name](), len(loads) - 1
    first = looped(policy, plant(name, loads), rounds)
    assert answers(looped(policy, plant(name, loads), rounds)) == answers(first)
    shown = [answers(looped(policy, Shown(first.observations), rounds)) for _ in range(2)]
    assert shown[0] == shown[1]
    one, other = OneRun(policy), OneRun(policy)
    for observation in first.observations:
        told, again = one.plan(observation), other.plan(observation)
        assert (told.actions, told.predicted, told.remarks, told.refused, told.unknown) == (
            again.actions, again.predicted, again.remarks, again.refused, again.unknown,
        )  # fmt: skip
        assert all(decision.note == "" or "failed" not in decision.note for decision in first.recording.decisions)
