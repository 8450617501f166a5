"""What `core/plant.py` promises, as tests that every plant takes.

A plant's tests say `TestFake = conformance_suite(PlantCase("fake", FakePlant))` in a test module of their own.
"""

import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastream.core.action import (
    KINDS,
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    RenewHost,
    Repartition,
    SetKeyTable,
    SetParallelism,
    SetTokens,
    Status,
    Switch,
    SwitchAlternate,
    SwitchEdge,
    UpdateCode,
)
from elastream.core.composition import switched
from elastream.core.frames import Frame
from elastream.core.hosts import ACTIVE, TRANSITIONS, HostState
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Composition, Context, Observation
from elastream.core.plant import Plant, Policy
from elastream.core.promises import Condition, PlantKind, Promise, promised
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Operator
from elastream.policies.elastic_allocator.policy import ElasticAllocator
from elastream.policies.otd import Otd
from elastream.policies.placements import Even, Random
from support.policy_run import OneRun
from support.property_examples import examples

ROUND = 2.0
"""Seconds from one planning round of the loop to the next, unless a run sets another period."""
PLACING: dict[str, Callable[[], Policy]] = {
    "even": Even,
    "random": lambda: Random(1),
    "otd": lambda: Otd(period=0.0),
    "elastic allocator": lambda: ElasticAllocator(period=0.0),
}

PlantPromises: TypeAlias = PlantKind | Mapping[Metric, tuple[Promise, ...]]


@dataclass(frozen=True)
class PlantCase:
    """A plant to be held to the contract.

    make: a running plant with at least one host that takes tasks, or that will within `settle` seconds. settle: seconds on
    its clock within which an accepted action must be in force. step: seconds between observations. examples: how many
    generated plans it is given. shared: whether all tests use one plant, which the last
    of them closes, because starting one takes long. kind: what the table of metrics calls such a plant, or its promises.
    measures: all that it measures, where that is less than the table promises. lose: makes a host of the plant die.
    """

    name: str
    make: Callable[[], Plant]
    kind: PlantPromises
    settle: float = 60.0
    step: float = 1.0
    examples: int = 60
    shared: bool = False
    measures: frozenset[tuple[Rows, Metric]] | None = None
    lose: Callable[[Any, str], None] | None = None


def advance(plant: Plant, seconds: float) -> Observation:
    """Let `seconds` pass on the plant's clock."""
    plant.clock.sleep_until(plant.clock.now() + seconds)
    return plant.observe()


def wait_for(plant: Plant, case: PlantCase, holds: Callable[[Observation], bool]) -> Observation:
    """Observe each step until `holds`; the last observation where it did not within `settle` seconds."""
    until = plant.clock.now() + case.settle
    observation = plant.observe()
    while not holds(observation) and plant.clock.now() < until:
        observation = advance(plant, case.step)
    return observation


def ready(plant: Plant, case: PlantCase) -> Observation:
    """Two observations with a host that takes tasks, so that rates over a period can be known.

    Where an earlier test of a shared plant has drained every host, one is leased.
    """
    seen = plant.observe()
    if not seen.usable and not seen.coming:
        plant.apply(LeaseHost(seen.host_name(), next(iter(plant.context.host_types))))
    wait_for(plant, case, lambda observation: bool(observation.usable))
    return advance(plant, case.step)


def any_action(context: Context) -> st.SearchStrategy[Action]:
    """Any action of the closed set, about half of its names known to the plant and half nonsense.

    Drawn from the context alone, not from what a plant has come to: hypothesis wants the same choices again on a replay.
    """
    nonsense = st.text(string.ascii_letters + " #/.", max_size=8)
    hosts = st.sampled_from([f"h{number}" for number in range(1, 7)]) | nonsense
    operators = st.sampled_from(context.graph.order) | nonsense
    alternates = [a.name for operator in context.graph.operators for a in operator.alternates]
    targets = [target for each in context.graph.choices.values() for target in each]
    tasks = st.builds(TaskId, operators, st.integers(-1, 40))
    return st.one_of(
        st.builds(SwitchAlternate, operators, st.sampled_from(alternates or [""]) | nonsense),
        st.builds(SwitchEdge, st.sampled_from([*context.graph.choices, "x"]), st.sampled_from([*targets, "x"])),
        st.builds(SetKeyTable, operators, st.integers(-1, 3)),
        st.builds(
            SetParallelism,
            operators,
            st.integers(-1, 4),
            st.lists(hosts, max_size=2).map(tuple),
            st.lists(tasks, max_size=2).map(tuple),
        ),
        st.builds(SetTokens, operators, st.lists(st.tuples(hosts, st.floats(-0.5, 1.5)), max_size=3).map(tuple)),
        st.builds(MoveTask, tasks, hosts),
        st.builds(Repartition, st.integers(-1, 8)),
        st.builds(LeaseHost, hosts, st.sampled_from([*context.host_types]) | nonsense, st.just("local") | nonsense),
        st.builds(RenewHost, hosts),
        st.builds(DrainHost, hosts),
        st.builds(CancelDrain, hosts),
        st.builds(ReleaseHost, hosts),
    )


def sensible_actions(observation: Observation, kind: str) -> list[Action]:  # noqa: C901
    """Actions of `kind` that make sense as things stand, at most two."""
    context, composition = observation.context, observation.composition
    found: list[Action] = []
    match kind:
        case "SwitchAlternate":
            found = [
                SwitchAlternate(o.name, a.name)
                for o in context.graph.operators
                for a in o.alternates
                if composition.alternates.get(o.name) != a.name
            ]
        case "SwitchEdge":
            found = [
                SwitchEdge(choice, target)
                for choice, targets in context.graph.choices.items()
                for target in targets
                if composition.choices.get(choice) != target
            ]
        case "SetParallelism":
            found = [SetParallelism(o, int(composition.parallelism.get(o, 1)) + 1) for o in sorted(context.scalable)]
        case "MoveTask":
            hosts = observation.hosts.ids
            found = [
                MoveTask(task, other)
                for task, row in zip(observation.tasks.tasks, observation.tasks.host.tolist(), strict=True)
                for other in observation.usable
                if hosts[row] != other
            ]
        case "SetTokens":
            halves = tuple(Ring.even(observation.usable[:2]).tokens.items())
            found = [SetTokens(operator, halves) for operator in sorted(context.partitions)]
        case "LeaseHost":
            found = [LeaseHost(observation.host_name(), kind) for kind in list(context.host_types)[:1]]
        case "RenewHost":
            found = [RenewHost(host) for host in observation.usable]
        case "DrainHost":
            found = [DrainHost(observation.usable[-1])]
        case "CancelDrain":
            found = [CancelDrain(host) for host, lease in observation.leases.items() if lease.state is HostState.DRAINING]
        case "ReleaseHost":
            found = [ReleaseHost(host) for host, lease in observation.leases.items() if lease.state is HostState.DRAINING]
    return found[:2]


def possible_switches(observation: Observation) -> list[Switch]:
    """A switch of each dynamic element, to what is not wanted of it now."""
    graph, now = observation.context.graph, observation.composition
    found: list[Switch] = []
    for operator in graph.operators:
        if len(operator.alternates) < 2:
            continue
        others = [each.name for each in operator.alternates if each.name != now.alternates.get(operator.name)]
        found += [SwitchAlternate(operator.name, name) for name in others[:1]]
    for choice, targets in graph.choices.items():
        found += [SwitchEdge(choice, target) for target in targets if target != now.choices.get(choice)][:1]
    return found


def everywhere(observation: Observation) -> bool:
    """Whether what is wanted is in effect in every query that has processed records."""
    wanted = chosen(replace(observation.composition, parallelism={}))
    return all(chosen(replace(each, parallelism={})) == wanted for each in observation.effective.values())


def in_effect(switch: Switch, observation: Observation) -> bool:
    """Whether the last records that the query of `switch` processed met what it chooses."""
    (query,) = switch.segments(observation.context.layout)
    composition = observation.effective.get(query)
    return composition is not None and switched(composition, [switch]) is composition


def chosen(composition: Composition) -> tuple[dict[str, str], dict[str, str], dict[str, int], dict[str, int]]:
    """What a composition composes, its version apart."""
    tables = {operator: table for operator, table in composition.tables.items() if table}
    return dict(composition.alternates), dict(composition.choices), dict(composition.parallelism), tables


def check_frame(frame: Frame) -> None:
    for metric in frame.metrics:
        column = frame.column(metric)
        assert not (column < 0).any(), f"{metric} is negative: {column}"
        assert not np.isinf(column).any(), f"{metric} is infinite: unknown is NaN"


def promised_by(kind: PlantPromises, metric: Metric, rows: Rows, operator: Operator | None = None) -> Iterator[Promise]:
    if isinstance(kind, PlantKind):
        yield from promised(metric, rows, kind, operator)
        return
    for each in kind.get(metric, ()):
        if each.rows is rows and (operator is None or operator.kind in each.kinds):
            yield each


def promises_of(observation: Observation, kind: PlantPromises, rows: Rows, metric: Metric) -> list[tuple[int, Promise]]:
    """(row, promise) for what the table promises; of every row where rows are no operators."""
    frame, graph = observation.frames[rows], observation.context.graph
    operators = [operator_of(graph, rows, name) for name in frame.ids]
    return [(row, each) for row, operator in enumerate(operators) for each in promised_by(kind, metric, rows, operator)]


def operator_of(graph: Graph, rows: Rows, name: str) -> Operator | None:
    """The operator that a row is about; None where it is about none."""
    match rows:
        case Rows.OPERATOR:
            return graph.by_name[name]
        case Rows.ALTERNATE:
            return graph.by_alternate[name][0]
    return None


def unpromised(observation: Observation, kind: PlantPromises) -> list[str]:
    """Values that are known although the table of metrics promises nothing of the sort."""
    found = []
    for rows, frame in observation.frames.items():
        for metric in frame.metrics:
            covered = {row for row, _ in promises_of(observation, kind, rows, metric)}
            known = np.flatnonzero(~np.isnan(frame.column(metric))).tolist()
            found += [f"{metric} of {rows} {frame.ids[row]!r}" for row in known if row not in covered]
    return found


def missing(observation: Observation, case: PlantCase) -> list[str]:
    """What the table of metrics promises and is not known: of every operator, and of one host, task and link at least."""
    found = []
    context = observation.context
    for metric in Metric:
        for rows, frame in observation.frames.items():
            if case.measures is not None and (rows, metric) not in case.measures:
                continue
            due: dict[int, bool] = {}
            for row, promise in promises_of(observation, case.kind, rows, metric):
                operator = operator_of(context.graph, rows, frame.ids[row])
                met = [each.holds(context.layout, context.target_latency, operator) for each in promise.when]
                if all(met) or promise.when == (Condition.HOST_UP,):
                    due[row] = bool(np.isnan(frame.column(metric)[row]))
            if rows in (Rows.HOST, Rows.TASK, Rows.LINK) and not all(due.values()):
                continue
            found += [f"{metric} of {rows} {frame.ids[row]!r}" for row, unknown in due.items() if unknown]
    return sorted(found)


def check_observation(plant: Plant, observation: Observation, kind: PlantPromises) -> None:
    """All that must hold of any observation at any time."""
    assert observation.time <= plant.clock.now()
    for frame in observation.frames.values():
        check_frame(frame)
    surplus = unpromised(observation, kind)
    assert not surplus, f"known, and not promised by the table of metrics: {surplus}"
    assert set(observation.operators.ids) == set(observation.context.graph.by_name)
    check_dynamic(observation)
    assert observation.hosts.ids == tuple(observation.leases), "a row per active lease, in the order of the leases"
    assert all(lease.active for lease in observation.leases.values())
    tasks = observation.tasks
    assert ((tasks.host >= 0) & (tasks.host < len(observation.hosts))).all(), "a task lies on a host that is not leased"
    assert ((tasks.operator >= 0) & (tasks.operator < len(observation.operators))).all()
    assert len(set(tasks.tasks)) == len(tasks), "a task stands twice"
    for end in (observation.exchange.source, observation.exchange.target):
        assert ((end >= -1) & (end < len(tasks))).all(), "somebody exchanges who is no task"
    assert all(earlier.time < observation.time for earlier in observation.history)
    names = {lease.host for lease in plant.ledger}
    assert set(observation.leases) <= names, "a host that is not in the ledger is used"
    assert not {observation.host_name(), observation.host_name(1)} & names
    for operator, ring in observation.rings.items():
        assert operator in observation.context.partitions, f"{operator} has a ring and no state partitions"
        assert set(ring) <= set(observation.leases), "a host that is gone is on a ring"
    check_ledger(plant)


def check_dynamic(observation: Observation) -> None:
    """Compositions in effect, alternates and signals are those of the dataflow."""
    context = observation.context
    assert set(observation.effective) <= {segment.name for segment in context.layout.segments}
    assert all(each.version <= observation.composition.version for each in observation.effective.values())
    alternates = {f"{o.name}.{a.name}" for o in context.graph.operators for a in o.alternates}
    assert set(observation.alternates.ids) <= alternates
    for name, reading in observation.signals.items():
        assert reading.time <= observation.time
        declared = context.graph.signals[name]
        assert reading.value is None or declared.kind.admits(reading.value), f"{name} is {reading.value!r}"


def check_ledger(plant: Plant) -> None:
    ledger = plant.ledger
    assert len({lease.host for lease in ledger}) == len(ledger), "a host stands twice in the ledger"
    assert [lease.since for lease in ledger] == sorted(lease.since for lease in ledger)
    for lease in ledger:
        states = [state for _, state in lease.history]
        assert lease.history[0] == (lease.since, HostState.REQUESTED)
        assert all(after in TRANSITIONS[before] for before, after in pairwise(states)), states
        assert [at for at, _ in lease.history] == sorted(at for at, _ in lease.history)
        assert (lease.until is None) == lease.active, f"{lease.host} is {lease.state} and ended at {lease.until}"


def check_outcome(action: Action, outcome: Outcome) -> None:
    assert isinstance(outcome, Outcome)
    assert outcome.action == action
    assert outcome.succeeded or outcome.reason, f"{outcome.status} without a reason: {action}"


def conformance_suite(case: PlantCase) -> type:  # noqa: C901
    """The contract as a class of tests for the plant in `case`; assign it to a name that starts with `Test`."""

    class Conformance:
        @pytest.fixture(scope="class")
        @classmethod
        def shared(cls) -> Iterator[Plant | None]:
            plant = case.make() if case.shared else None
            yield plant
            if plant is not None:
                plant.close()

        @contextmanager
        def plant(self, shared: Plant | None) -> Iterator[Plant]:
            plant = shared or case.make()
            ready(plant, case)
            try:
                yield plant
            finally:
                if shared is None:
                    plant.close()

        def test_what_is_observed_is_consistent_while_time_passes(self, shared):
            with self.plant(shared) as plant:
                times = []
                for _ in range(5):
                    observation = advance(plant, case.step)
                    check_observation(plant, observation, case.kind)
                    times.append(observation.time)
                assert times == sorted(set(times))
                assert len({observation.context.graph.name, plant.context.graph.name}) == 1

        def test_every_host_that_takes_tasks_has_a_speed_that_scales_its_cores(self, shared):
            promises = promised_by(case.kind, Metric.SPEED, Rows.HOST)
            measured = any(each.when in ((), (Condition.HOST_UP,)) for each in promises)
            if not measured or (case.measures is not None and (Rows.HOST, Metric.SPEED) not in case.measures):
                pytest.skip("this plant measures no speed of hosts")
            with self.plant(shared) as plant:
                seen = wait_for(plant, case, lambda o: all(o.hosts.reading(host, Metric.SPEED).known for host in o.usable))
                assert seen.usable
                for host in seen.usable:
                    speed = seen.hosts.value(host, Metric.SPEED)
                    assert speed > 0
                    assert seen.capacities[host] == seen.leases[host].type.cores * speed

        def test_what_the_table_of_metrics_promises_is_and_stays_known(self, shared):
            with self.plant(shared) as plant:
                seen = wait_for(plant, case, lambda observation: not missing(observation, case))
                assert not missing(seen, case), f"promised by the table of metrics, and unknown: {missing(seen, case)}"
                rounds = [set(missing(advance(plant, ROUND), case)) for _ in range(6)]
                for three in zip(rounds, rounds[1:], rounds[2:], strict=False):
                    assert not set.intersection(*three)

        @pytest.mark.parametrize("kind", KINDS)
        def test_an_action_that_makes_sense_comes_into_force(self, shared, kind):
            with self.plant(shared) as plant:
                if kind not in plant.context.capabilities:
                    pytest.skip(f"this plant has no {kind}")
                observation = self.prepared(plant, kind)
                actions = sensible_actions(observation, kind)
                if not actions:
                    pytest.skip(f"this dataflow gives no occasion for {kind}")
                for action in actions:
                    outcome = plant.apply(action)
                    check_outcome(action, outcome)
                    assert outcome.succeeded, outcome
                    if outcome.status is Status.DONE:
                        assert action.in_force(advance(plant, case.step)), f"{action} is said to be done"
                    else:
                        after = wait_for(plant, case, lambda o, a=action: a.in_force(o))
                        assert action.in_force(after), f"{action} was accepted and is not in force"
                    check_observation(plant, plant.observe(), case.kind)

        @pytest.mark.parametrize("policy", PLACING)
        def test_what_policies_of_placement_propose_is_accepted(self, shared, policy):
            with self.plant(shared) as plant:
                if "MoveTask" not in plant.context.capabilities:
                    pytest.skip("this plant moves no tasks")
                self.prepared(plant, "MoveTask")
                decides = OneRun(PLACING[policy]())
                for _ in range(3):
                    for action in decides.plan(advance(plant, case.step)).actions:
                        outcome = plant.apply(action)
                        check_outcome(action, outcome)
                        assert outcome.succeeded, outcome

        def prepared(self, plant: Plant, kind: str) -> Observation:
            """An observation that gives occasion for an action of `kind`: a second host, or one that is being drained."""
            observation = plant.observe()
            if kind in ("MoveTask", "SetTokens", "DrainHost", "CancelDrain", "ReleaseHost") and len(observation.usable) < 2:
                plant.apply(LeaseHost(observation.host_name(), next(iter(plant.context.host_types))))
                observation = wait_for(plant, case, lambda o: len(o.usable) > 1)
            if kind in ("CancelDrain", "ReleaseHost"):
                drain = DrainHost(observation.usable[-1])
                plant.apply(drain)
                observation = wait_for(plant, case, lambda o: drain.in_force(o) and not holds_tasks(o, drain.host))
            return observation

        def ringed(self, plant: Plant, tokens: Mapping[str, float]) -> Ring:
            """A ring of these tokens, once the state partitions of the first operator that has any are where it says."""
            operator = min(plant.context.partitions)
            action = SetTokens(operator, tuple(tokens.items()))
            outcome = plant.apply(action)
            check_outcome(action, outcome)
            assert outcome.succeeded, outcome
            after = wait_for(plant, case, lambda o: action.in_force(o))
            assert action.in_force(after), f"{action} was accepted and is not in force"
            assert after.rings[operator] == Ring(tokens)
            assert plant.apply(action).status is Status.DONE
            return Ring(tokens)

        def hosts(self, plant: Plant, count: int) -> tuple[str, ...]:
            """`count` hosts that take tasks, leased where there are fewer."""
            observation = plant.observe()
            for number in range(count - len(observation.usable)):
                plant.apply(LeaseHost(observation.host_name(number), next(iter(plant.context.host_types))))
            return wait_for(plant, case, lambda o: len(o.usable) >= count).usable[:count]

        def placed(self, plant: Plant, seen: Observation | None = None) -> list[str]:
            """Host of each state partition of the first operator that has any."""
            seen, operator = seen or plant.observe(), min(plant.context.partitions)
            tasks = [(task, row) for task, row in zip(seen.tasks.tasks, seen.tasks.host.tolist(), strict=True)]
            return [seen.hosts.ids[row] for task, row in sorted(tasks) if task.operator == operator]

        def test_a_ring_moves_the_intervals_that_change_and_nothing_else(self, shared):
            with self.plant(shared) as plant:
                self.with_rings(plant)
                first, second, third = self.hosts(plant, 3)
                self.ringed(plant, {first: 0.0, second: 0.5})
                before = self.placed(plant)
                half = len(before) // 2
                assert before == [first] * (len(before) - half) + [second] * half
                self.ringed(plant, {first: 0.0, second: 0.25})
                assert self.placed(plant) == list(Ring({first: 0.0, second: 0.25}).hosts_of(len(before)))
                there = wait_for(plant, case, lambda o: not o.moving)
                assert not there.moving, "what moves comes to where it is placed"
                ring = self.ringed(plant, {first: 0.0, second: 0.5})
                ring = self.ringed(plant, ring.with_node(third, 0.25).tokens)
                after = self.placed(plant)
                assert all(old == new or (old, new) == (first, third) for old, new in zip(before, after, strict=True))
                assert third in after, "a host joins between two"
                self.ringed(plant, ring.without(third).tokens)
                left = list(ring.without(third).hosts_of(len(before)))
                assert self.placed(plant) == left, "what leaves hands its keys to its neighbour"

        @pytest.mark.parametrize("way", ["drained", "lost"])
        def test_what_a_host_of_a_ring_leaves_goes_to_its_neighbour_clockwise(self, shared, way):
            with self.plant(shared) as plant:
                self.with_rings(plant)
                if way == "lost" and case.lose is None:
                    pytest.skip("no host of this plant can be made to die")
                first, second, third = self.hosts(plant, 3)
                operator = min(plant.context.partitions)
                ring = self.ringed(plant, {first: 0.0, second: 0.25, third: 0.5})
                if way == "drained":
                    assert plant.apply(DrainHost(first)).succeeded
                else:
                    case.lose(plant, first)
                left = ring.without(first)
                assert left.tokens == {second: 0.0, third: 0.5}
                wanted = list(left.hosts_of(plant.context.partitions[operator]))
                seen = wait_for(plant, case, lambda o: o.rings.get(operator) == left and self.placed(plant, o) == wanted)
                assert seen.rings[operator] == left
                assert self.placed(plant, seen) == wanted
                plant.apply(ReleaseHost(first))
                wait_for(plant, case, lambda o: first not in o.leases)

        def with_rings(self, plant: Plant) -> None:
            """Skip the test where no operator has state partitions that a ring could divide."""
            if "SetTokens" not in plant.context.capabilities:
                pytest.skip("this plant has no rings")
            if not wait_for(plant, case, lambda o: bool(o.context.partitions)).context.partitions:
                pytest.skip("no operator of this dataflow has state partitions")

        def settled(self, plant: Plant) -> Observation:
            """An observation with what is wanted in effect everywhere; skips the test where nothing can be switched."""
            if not possible_switches(plant.observe()):
                pytest.skip("nothing in this dataflow can be switched")
            return wait_for(plant, case, lambda o: bool(o.effective) and everywhere(o))

        def test_switches_of_a_plan_are_one_version_accepted_until_in_effect(self, shared):
            with self.plant(shared) as plant:
                before = self.settled(plant)
                plan = possible_switches(before)
                outcomes = plant.switch(plan)
                assert [outcome.action for outcome in outcomes] == plan
                assert {outcome.status for outcome in outcomes} == {Status.ACCEPTED}, "no record was processed under it yet"
                at_once = plant.observe()
                assert at_once.composition.version == before.composition.version + 1
                assert switched(at_once.composition, plan) is at_once.composition, "it is wanted from now on"
                assert all(outcome.succeeded for outcome in plant.switch(plan))
                assert plant.observe().composition == at_once.composition
                assert plant.switch([]) == ()
                after = wait_for(plant, case, lambda o: all(in_effect(switch, o) for switch in plan))
                for switch in plan:
                    assert in_effect(switch, after), f"{switch} was accepted and is not in effect"
                    assert plant.apply(switch).status is Status.DONE
                assert next(iter(after.effective.values())).version <= after.composition.version
                check_observation(plant, plant.observe(), case.kind)

        def test_a_switch_back_overtakes_one_that_is_not_in_effect_yet(self, shared):
            with self.plant(shared) as plant:
                settled = self.settled(plant)
                plan = possible_switches(settled)[:1]
                back = possible_switches(replace(settled, composition=switched(settled.composition, plan)))[:1]
                assert all(outcome.succeeded for outcome in (*plant.switch(plan), *plant.switch(back)))
                assert switched(plant.observe().composition, back) is plant.observe().composition
                after = wait_for(plant, case, lambda o: everywhere(o) and in_effect(back[0], o))
                assert in_effect(back[0], after)

        def test_a_switch_that_is_refused_does_not_hold_up_the_others(self, shared):
            with self.plant(shared) as plant:
                before = plant.observe()
                plan = possible_switches(before)[:1]
                nonsense: list[Switch] = [
                    SwitchAlternate("no such operator", "x"),
                    SwitchEdge("no such choice", "x"),
                    SetKeyTable("no such operator", 1),
                    UpdateCode(1, ("no such operator",)),
                    *(SetKeyTable(o.name, 10**6) for o in before.context.graph.operators if o.alternates),
                ]
                outcomes = plant.switch([*nonsense, *plan])
                for switch, outcome in zip([*nonsense, *plan], outcomes, strict=True):
                    check_outcome(switch, outcome)
                    assert outcome.succeeded == (switch in plan), outcome
                after = plant.observe().composition
                assert after.version == before.composition.version + len(plan)
                assert chosen(after) == chosen(switched(before.composition, plan))

        def test_each_alternate_that_has_run_has_figures_of_its_own(self, shared):
            with self.plant(shared) as plant:
                figure = (Rows.ALTERNATE, Metric.SERVICE_TIME)
                promises = list(promised_by(case.kind, Metric.SERVICE_TIME, Rows.ALTERNATE))
                if not promises or (case.measures is not None and figure not in case.measures):
                    pytest.skip("this plant has no figures of alternates")
                graph = plant.context.graph
                dynamic = [o for o in graph.operators if len(o.alternates) > 1]
                if not dynamic:
                    pytest.skip("no operator of this dataflow has alternates")
                for alternate in dynamic[0].alternates:
                    plant.switch([SwitchAlternate(dynamic[0].name, alternate.name)])
                    row = f"{dynamic[0].name}.{alternate.name}"
                    seen = wait_for(plant, case, lambda o, row=row: row in o.alternates)
                    assert seen.alternates.value(row, Metric.SERVICE_TIME) > 0
                    assert seen.alternates.value(row, Metric.SELECTIVITY) >= 0

        def test_domain_signals_have_values_of_when_records_reached_them(self, shared):
            with self.plant(shared) as plant:
                signals = list(plant.context.graph.signals)
                if not signals:
                    pytest.skip("this dataflow gives no signals")
                first = wait_for(plant, case, lambda o: all(name in o.signals for name in signals))
                assert all(first.signals[name].value is not None for name in signals)
                newer = wait_for(plant, case, lambda o: all(o.signals[n].time > first.signals[n].time for n in signals))
                assert all(newer.signals[name].time > first.signals[name].time for name in signals)

        @settings(
            max_examples=examples(case.examples),
            derandomize=True,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.differing_executors],
        )
        @given(data=st.data())
        def test_no_action_makes_a_plant_raise_and_twice_is_once(self, shared, data):
            with self.plant(shared) as plant:
                plan = data.draw(st.lists(st.tuples(any_action(plant.context), st.booleans()), min_size=1, max_size=6))
                for action, pause in plan:
                    first = plant.apply(action)
                    check_outcome(action, first)
                    before = plant.observe()
                    hosts = [lease.host for lease in plant.ledger]
                    second = plant.apply(action)
                    check_outcome(action, second)
                    assert not first.succeeded or second.succeeded, f"first {first}, then {second}"
                    assert [lease.host for lease in plant.ledger] == hosts
                    observation = plant.observe()
                    if first.status is Status.DONE:
                        assert chosen(observation.composition) == chosen(before.composition)
                    check_observation(plant, advance(plant, case.step) if pause else observation, case.kind)

        def test_what_names_nothing_is_refused_with_a_reason_and_changes_nothing(self, shared):
            with self.plant(shared) as plant:
                before = plant.observe()
                for action in (
                    SwitchAlternate("no such operator", "x"),
                    SwitchEdge("no such choice", "x"),
                    SetParallelism("no such operator", 2),
                    MoveTask(TaskId("no such operator", 0), before.usable[0]),
                    SetTokens("no such operator", ((before.usable[0], 0.0),)),
                    *(
                        SetTokens(operator, tokens)
                        for operator in before.context.partitions
                        for tokens in (
                            (),
                            (("no such host", 0.0),),
                            ((before.usable[0], 1.0),),
                            ((before.usable[0], float("nan")),),
                            ((before.usable[0], 0.0), (before.usable[0], 0.5)),
                        )
                    ),
                    LeaseHost(before.host_name(), "no such type"),
                    RenewHost("no such host"),
                    DrainHost("no such host"),
                    CancelDrain("no such host"),
                    ReleaseHost("no such host"),
                ):
                    outcome = plant.apply(action)
                    check_outcome(action, outcome)
                    assert not outcome.succeeded, outcome
                after = plant.observe()
                assert tuple(after.leases) == tuple(before.leases)
                assert chosen(after.composition) == chosen(before.composition)

        def test_a_lease_is_in_the_ledger_and_paid_from_the_moment_it_is_requested(self, shared):
            with self.plant(shared) as plant:
                observation = plant.observe()
                kind = next(iter(plant.context.host_types))
                host = observation.host_name()
                asked = plant.clock.now()
                assert plant.apply(LeaseHost(host, kind)).succeeded
                lease = next(lease for lease in plant.ledger if lease.host == host)
                assert lease.state in ACTIVE
                assert asked <= lease.since <= plant.clock.now()
                assert lease.cost(lease.since) == lease.type.price * lease.type.billing.units(0.0)
                up = wait_for(plant, case, lambda o: host in o.usable)
                assert host in up.usable
                assert plant.apply(ReleaseHost(host)).succeeded or plant.apply(DrainHost(host)).succeeded
                wait_for(plant, case, lambda o: not holds_tasks(o, host))
                plant.apply(ReleaseHost(host))
                gone = wait_for(plant, case, lambda o: host not in o.leases)
                assert host not in gone.leases
                assert host in {lease.host for lease in plant.ledger}, "an ended lease stays in the ledger"

        def test_the_last_host_that_holds_tasks_is_not_given_up(self, shared):
            with self.plant(shared) as plant:
                observation = plant.observe()
                for host in list(observation.leases):
                    plant.apply(ReleaseHost(host))
                    observation = advance(plant, case.step)
                    check_observation(plant, observation, case.kind)
                assert not len(observation.tasks) or observation.leases

        def test_a_closed_plant_holds_no_host_and_may_be_closed_again(self, shared):
            plant = shared or case.make()
            ready(plant, case)
            plant.apply(LeaseHost(plant.observe().host_name(), next(iter(plant.context.host_types))))
            plant.close()
            plant.close()
            assert [lease for lease in plant.ledger if lease.active] == []
            check_ledger(plant)
            outcome = plant.apply(LeaseHost("h999", next(iter(plant.context.host_types))))
            check_outcome(outcome.action, outcome)
            assert not outcome.succeeded
            assert [lease for lease in plant.ledger if lease.active] == []

    Conformance.__name__ = Conformance.__qualname__ = f"Test{case.name.capitalize()}Plant"
    return Conformance


def holds_tasks(observation: Observation, host: str) -> bool:
    row = observation.hosts.rows.get(host, -1)
    return row >= 0 and bool((observation.tasks.host == row).any())
