"""The highest value that the usable cores carry, and how it comes to rest."""

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.control.guarding import GuardExtension
from elastream.control.loop import Loop
from elastream.core.action import LeaseHost, SwitchAlternate, SwitchEdge
from elastream.core.frames import Frame
from elastream.core.guarding import GuardDecision
from elastream.core.hosts import HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Context, Observation
from elastream.core.plant import check_supported
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import ElastreamError
from elastream.loads import steps
from elastream.policies.common.alternates import CompositionWork
from elastream.policies.highest_value import HighestValue
from elastream.policies.static import Static
from elastream.policies.threshold import Threshold
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Collector
from elastream.report.page import selections_of
from elastream.simulator import Settings, make_plant
from support.policy_run import OneRun
from support.property_examples import examples

VM = HostType("vm", cores=2.0)
DECLARED = {"arima": (1.0, 0.02), "tree": (0.8, 0.005), "mean": (0.3, 0.001)}


def graph(declared: dict[str, tuple[float, float | None]] | None = None) -> Graph:
    """Meters -> forecast (alternates with value and cost) -> a choice of `curtail`, which works, or nothing."""
    alternates = tuple(Alternate(name, value=value, cost=cost) for name, (value, cost) in (declared or DECLARED).items())
    return Graph(
        "grid",
        (
            Operator("meters", Kind.SOURCE),
            Operator("forecast", alternates=alternates),
            Operator("curtail", alternates=(Alternate("curtail", cost=0.01),)),
            Operator("out", Kind.SINK),
            Operator("asleep", Kind.SINK),
        ),
        (
            Edge("meters", "forecast"),
            Edge("forecast", "asleep", choice="split", value=0.5),
            Edge("forecast", "curtail", choice="split"),
            Edge("curtail", "out"),
        ),
    )


def observed(rate: float, at: float = 0.0, hosts: int = 1, of: Graph | None = None, **parts: Any) -> Observation:
    """At `rate` records/s on hosts of two cores, where `runs` names what runs of each element."""
    context = Context(lay_out(of or graph()), {"vm": VM})
    leases = {
        f"h{n}": Lease(f"h{n}", VM, 0.0).to(HostState.STARTING, 0.0).to(HostState.RUNNING, 0.0) for n in range(1, hosts + 1)
    }
    runs = parts.pop("runs", {})
    default = Composition.default(context.graph)
    composition = replace(
        default,
        alternates={name: runs.get(name, each) for name, each in default.alternates.items()},
        choices={name: runs.get(name, each) for name, each in default.choices.items()},
    )
    names = context.graph.order
    frame = Frame(names, {Metric.ARRIVAL_RATE: [rate if name == "meters" else math.nan for name in names]})
    return Observation(at, context, frame, hosts=Frame(tuple(leases)), leases=leases, composition=composition, **parts)


def standing(*allowed: str, element: str = "forecast", **values: float) -> dict[str, GuardDecision]:
    """Guards of arima, tree and mean (or of the branches), of which `allowed` are active."""
    names = ("arima", "tree", "mean") if element == "forecast" else ("asleep", "curtail")
    return {
        element: GuardDecision(
            element, allowed, {**dict.fromkeys(names, 1.0), **values}, {}, dict.fromkeys(names, "when x")
        )
    }


ASLEEP = standing("asleep", element="split")


def switched(observation: Observation, policy: HighestValue | None = None, memory: Any = None) -> list[str]:
    """What is switched to."""
    plan = (policy or HighestValue()).plan(observation, memory)
    assert all(action.why for action in plan.actions)
    return [
        a.alternate if isinstance(a, SwitchAlternate) else a.target for a in plan.actions if not isinstance(a, LeaseHost)
    ]


@pytest.mark.parametrize(
    ("rate", "hosts", "runs", "to"),
    [
        (60, 1, "mean", "arima"),  # 1.2 of 2 cores, 70 % of which are 1.4
        (90, 1, "mean", "tree"),  # 1.8 and 0.45
        (90, 2, "mean", "arima"),
        (900, 1, "mean", None),  # 18, 4.5 and 0.9
        (5000, 1, "arima", "mean"),  # even the cheapest is not carried
        (120, 1, "arima", "tree"),  # 2.4: what runs is not carried any more
        (90, 1, "arima", None),  # 1.8: what runs goes on
        (0, 1, "mean", "arima"),
    ],
)
def test_it_runs_the_highest_value_that_usable_cores_carry(rate: float, hosts: int, runs: str, to: str | None) -> None:
    found = switched(observed(rate, hosts=hosts, runs={"forecast": runs}, standings=ASLEEP))
    assert found == ([] if to is None else [to])


@pytest.mark.parametrize(
    ("guards", "runs", "to"),
    [
        (standing("tree", "mean"), "arima", "tree"),
        (standing("tree", "mean", tree=0.2, mean=0.9), "arima", "mean"),
        (standing("tree", "mean", tree=0.2, mean=math.nan), "arima", "tree"),
        (standing("tree", "mean", tree=math.nan, mean=math.nan), "arima", "tree"),
        (standing("arima", "tree", arima=0.5), "arima", "tree"),
        (standing("arima", "tree"), "tree", None),  # of equals what runs stays
        (standing(), "arima", None),
        (standing("tree", tree=0.0), "tree", None),
    ],
)
def test_guards_say_what_may_run_and_what_it_is_worth(guards: dict[str, GuardDecision], runs: str, to: str | None) -> None:
    found = switched(observed(10, runs={"forecast": runs}, standings={**ASLEEP, **guards}))
    assert found == ([] if to is None else [to])


def test_forbidden_option_gives_way_to_carried_else_least_work() -> None:
    guards = {**ASLEEP, **standing("tree", "mean")}
    assert switched(observed(200, standings=guards)) == ["tree"]
    assert switched(observed(1000, standings={**ASLEEP, **standing("tree", "mean", tree=1.0, mean=0.3)})) == ["mean"]
    assert switched(observed(9000, standings=guards)) == ["mean"]
    (action,) = HighestValue().plan(observed(9000, standings=guards)).actions
    assert action.why == "the guard of arima is not active (arima: when x); mean: it works least: 9 of 2 cores"
    unknown = observed(math.nan, runs={"forecast": "tree"}, standings=ASLEEP)
    assert [str(each) for each in HighestValue().plan(unknown).unknown] == [
        "cannot choose: arrival rate of 'meters' unknown"
    ]
    assert switched(unknown) == []
    assert switched(observed(math.nan, standings={**ASLEEP, **standing("mean")})) == ["mean"]


def test_a_branch_that_sleeps_costs_nothing_and_one_that_wakes_counts() -> None:
    awake = standing("curtail", element="split")
    (action,) = HighestValue().plan(observed(60, standings=awake)).actions
    assert action == SwitchEdge("split", "curtail"), "1.8 of 2 cores with arima, which goes on"
    assert switched(observed(80, standings=awake)) == ["curtail", "tree"], "2.4: arima is given up for 1.2"
    assert switched(observed(60, runs={"forecast": "tree"}, standings=ASLEEP)) == ["arima"]
    assert switched(observed(10)) == ["curtail"], "without guards all may run, by their declared values"


def test_measured_costs_come_before_declared_ones_and_are_remembered() -> None:
    def seen(rate: float, at: float, **alternates: float) -> Observation:
        frame = Frame(
            [f"forecast.{name}" for name in alternates],
            {Metric.SERVICE_TIME: list(alternates.values()), Metric.SELECTIVITY: [1.0] * len(alternates)},
        )
        return observed(rate, at, runs={"forecast": "tree"}, standings=ASLEEP, alternates=frame)

    assert switched(seen(60, 0.0, arima=0.03, tree=0.005)) == []
    assert switched(seen(60, 0.0, arima=0.002)) == ["arima"]
    run = OneRun(HighestValue())
    assert run.plan(seen(60, 0.0, arima=0.03)).actions == ()
    assert run.plan(seen(60, 2.0)).actions == (), "known from before"
    assert run.plan(seen(40, 4.0)).actions == (SwitchAlternate("forecast", "arima"),)


def test_alternate_of_unknown_cost_is_tried_once() -> None:
    of = graph({"cheap": (0.5, 0.001), "best": (1.0, None)})
    run = OneRun(HighestValue())
    (tried,) = run.plan(observed(100, 0.0, of=of, standings=ASLEEP)).actions
    assert tried == SwitchAlternate("forecast", "best")
    assert tried.why == "value 1 instead of 0.5; 0 of 2 cores, and the cost of best is unknown until it runs"
    measured = Frame(["forecast.best"], {Metric.SERVICE_TIME: [0.05], Metric.SELECTIVITY: [1.0]})
    after = {"of": of, "standings": ASLEEP}
    (back,) = run.plan(observed(100, 2.0, runs={"forecast": "best"}, alternates=measured, **after)).actions
    assert back == SwitchAlternate("forecast", "cheap")
    assert back.why == "5 cores are needed with best, and 2 are usable"
    for second in range(4, 400, 2):
        assert run.plan(observed(100, float(second), **after)).actions == ()


def test_a_small_lead_must_have_stood_and_a_switch_for_value_rests() -> None:
    run = OneRun(HighestValue(settle=10.0))
    slight = {**ASLEEP, **standing("arima", "tree", arima=0.98)}
    found = [bool(run.plan(observed(10, float(at), standings=slight)).actions) for at in range(0, 14, 2)]
    assert found == [False] * 5 + [True, False], "what was not done is asked for again after a rest"
    run = OneRun(HighestValue(settle=10.0))
    clear = {**ASLEEP, **standing("arima", "tree", arima=0.5)}
    other = {**ASLEEP, **standing("arima", "tree", tree=0.5)}
    assert len(run.plan(observed(10, 0.0, standings=clear)).actions) == 1
    swung = [
        run.plan(observed(10, float(at), runs={"forecast": "tree"}, standings=other)).actions for at in range(2, 14, 2)
    ]
    assert [len(actions) for actions in swung] == [0, 0, 0, 0, 1, 0]
    run.plan(observed(10, 20.0, standings=clear))
    fresh = observed(10, 22.0, runs={"forecast": "tree"}, standings=other, guards=2)
    assert len(run.plan(fresh).actions) == 1, "new guards are followed at once"


@pytest.mark.parametrize(("latency", "backlog", "to"), [(9.0, 500.0, []), (9.0, 0.0, ["arima"]), (1.0, 500.0, ["arima"])])
def test_nothing_is_switched_for_value_alone_while_records_are_late(latency: float, backlog: float, to: list[str]) -> None:
    seen = observed(60, runs={"forecast": "mean"})
    names = seen.context.graph.order
    waiting = {Metric.BACKLOG: [backlog if name == "meters" else math.nan for name in names]}
    arriving = {Metric.ARRIVAL_RATE: seen.operators.column(Metric.ARRIVAL_RATE)}
    late = replace(
        seen,
        context=replace(seen.context, target_latency=2.0),
        operators=Frame(names, {**arriving, **waiting}),
        application=Frame((seen.context.graph.name,), {Metric.LATENCY_P99: [latency]}),
    )
    assert switched(late) == to


def test_element_is_not_switched_while_a_switch_is_under_way() -> None:
    under_way = {"meters": Composition(0, {"forecast": "mean"}, {"split": "asleep"})}
    assert switched(observed(10, runs={"forecast": "tree"}, standings=ASLEEP, effective=under_way)) == []
    there = {"meters": Composition(1, {"forecast": "tree"}, {"split": "asleep"})}
    assert switched(observed(10, runs={"forecast": "tree"}, standings=ASLEEP, effective=there)) == ["arima"]


@given(st.lists(st.tuples(st.floats(40, 110), st.floats(0.9, 1.0), st.floats(0.9, 1.0)), min_size=50, max_size=150))
@settings(deadline=None, max_examples=examples(40))
def test_it_does_not_flap_where_rates_and_values_are_noise(rounds: list[tuple[float, float, float]]) -> None:
    run, runs, switches = OneRun(HighestValue()), "arima", []
    for number, (rate, arima, tree) in enumerate(rounds):
        guards = {**ASLEEP, **standing("arima", "tree", arima=arima, tree=tree, mean=0.1)}
        seen = observed(rate, 2.0 * number, runs={"forecast": runs}, standings=guards)
        for action in run.plan(seen).actions:
            assert isinstance(action, SwitchAlternate)
            runs = action.alternate
            switches.append(seen.time)
    # For value at most once a minute, and once more each where the rate has left what the cores carry.
    assert len(switches) <= 2 + 2 * len(rounds) * 2.0 / 60.0


@given(
    st.lists(
        st.tuples(
            st.floats(0, 500) | st.just(math.nan), st.sets(st.sampled_from(["arima", "tree", "mean"])), st.integers(0, 3)
        ),
        max_size=20,
    )
)
@settings(deadline=None, max_examples=examples(100))
def test_choice_stays_in_the_allowed_set_without_idle_switches(rounds: list[Any]) -> None:
    run, runs = OneRun(HighestValue(settle=4.0)), {"forecast": "arima", "split": "asleep"}
    for number, (rate, allowed, hosts) in enumerate(rounds):
        guards = standing(*sorted(allowed))
        seen = observed(rate, 2.0 * number, hosts=hosts, runs=runs, standings=guards)
        plan = run.plan(seen)
        for action in plan.actions:
            assert isinstance(action, SwitchAlternate | SwitchEdge)
            on_edge = isinstance(action, SwitchEdge)
            element, to = ("split", action.target) if on_edge else ("forecast", action.alternate)
            assert to != runs[element]
            assert element == "split" or to in allowed
            runs[element] = to
        assert not allowed or runs["forecast"] in allowed, "what may not run is left at once"


def test_with_a_sizing_policy_both_plan_and_each_keeps_its_memory() -> None:
    policy = HighestValue(sizing=Static(3))
    assert policy.name == "highest_value + static"
    seen = observed(60, runs={"forecast": "mean"}, standings=ASLEEP)
    plan = policy.plan(seen)
    assert plan.actions[0] == SwitchAlternate("forecast", "arima")
    assert [type(action) for action in plan.actions[1:]] == [LeaseHost, LeaseHost]
    assert plan.memory[1] == 3
    assert HighestValue(sizing=Threshold()).needs > HighestValue().needs


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("highest_value", HighestValue()),
        ("highest_value:fill=0.5,sizing=threshold", HighestValue(fill=0.5, sizing=Threshold())),
        ("highest_value:sizing=static:4", HighestValue(sizing=Static(4))),
    ],
)
def test_it_is_named_with_its_sizing_on_a_command_line(text: str, policy: HighestValue) -> None:
    assert made(POLICY, *named_in(text, POLICY), References(Path())) == policy


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"sizing": {"threshold": {"spare": 1}}}, ""),
        ({"sizing": {"threshold": None}}, ""),
        ({"sizing": {"treshold": {}}}, "sizing.treshold: there is no policy 'treshold', did you mean 'threshold'?"),
        (
            {"sizing": {"threshold": {"spar": 1}}},
            "sizing.threshold.spar: there is no such parameter, did you mean 'spare'?",
        ),
        ({"sizing": {"threshold": 3}}, "sizing.threshold: 3 is not a mapping of parameters"),
        (
            {"sizing": {"threshold": {}, "static": {}}},
            "sizing: 2 names are given; exactly one is needed, with its parameters below it",
        ),
        ({"fill": 1.5}, "fill: fill is 1.5; it must be above 0 and at most 1"),
        ({"gain": -1}, "gain: gain is -1; it must be 0 to 1"),
        ({"settle": math.inf}, "settle: inf is not a finite number"),
    ],
)
def test_what_is_wrong_with_its_parameters_is_one_sentence(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ElastreamError) if said else nullcontext() as raised:
        made(POLICY, "highest_value", parameters, References(Path()))
    assert not said or str(raised.value) == said


def test_dataflow_without_a_choice_is_refused() -> None:
    plain = graph({"arima": (1.0, 0.02)})
    bare = Graph("bare", plain.operators[:2] + plain.operators[3:4], (Edge("meters", "forecast"), Edge("forecast", "out")))
    context = Context(lay_out(bare), {"vm": VM})
    with pytest.raises(ElastreamError, match="highest_value: no operator has several alternates, and there is no choice"):
        check_supported(HighestValue(), context)
    sizing = made(POLICY, "even", {}, References(Path()))
    with pytest.raises(ElastreamError, match="it places tasks on the hosts that are there"):
        check_supported(HighestValue(sizing=sizing), observed(1).context)
    check_supported(HighestValue(), observed(1).context)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "apart"])
def test_in_a_burst_a_cheaper_alternate_runs_for_a_while(fused: bool) -> None:
    of = graph({"tree": (0.8, 0.005), "arima": (1.0, 0.02)})
    plant = make_plant(
        lay_out(of, chained=fused),
        host_types=[VM],
        loads={"meters": steps((20, "60s"), (150, "60s"), (20, "60s"))},
        settings=Settings(monitor=1.0),
        max_hosts=1,
    )
    collector = Collector()
    guards = GuardLog()
    guards.append("guards: {split: {asleep: {value: 1.0}}}", "g.yaml", "test")
    Loop(
        plant, HighestValue(), extensions=[GuardExtension(guards)], observers=[collector], limit=180.0, to_the_limit=True
    ).run()
    recording = collector.recording
    runs = recording.compositions_at
    assert [runs(at)[""].alternates["forecast"] for at in (10.0, 59.0, 80.0, 119.0, 179.0)] == [
        "arima", "arima", "tree", "tree", "arima",
    ]  # fmt: skip
    switches = [outcome.action for each in recording.decisions for outcome in each.done]
    assert len(switches) == 3, switches
    (element,) = [each for each in selections_of(recording) if each.element == "forecast"]
    assert dict(element.shares)["arima"] > 0.6
    assert element.switches == 3


def test_stage_work_counts_once_if_its_source_has_the_figure() -> None:
    """Simulated queries are measured stage by stage, and the first operator of one has its figure."""
    plant = make_plant(
        lay_out(graph()),
        host_types=[VM],
        loads={"meters": steps((20.0, 120.0))},
        settings=Settings(monitor=1.0),
        seconds=120.0,
    )
    plant.advance(60.0)
    seen = plant.observe()
    assert seen.operators.value("meters", Metric.BUSY_CORES) > 0.2
    works = CompositionWork(seen, {}).cores(seen.composition)
    assert works == pytest.approx(20 * 0.02, rel=0.1)  # arima alone: its records go to nobody
