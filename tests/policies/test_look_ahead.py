"""Policies that look ahead, in simulated runs of a dataflow that nothing was made for; and with forecasts that are bad."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from elastream.core.hosts import Billing, HostType
from elastream.core.metrics import Metric
from elastream.core.plant import check_supported
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import DataflowError, InputError
from elastream.evaluation.trials import prospect_of, simulated
from elastream.loads import SpeedWalk
from elastream.loads.pattern import steps
from elastream.policies.forecasting.seasonal import BackTested
from elastream.policies.forecasting.series import QUANTILES, Oracle, Outlook
from elastream.policies.look_ahead.policy import Caf, Plasticc, Wpo, Wpp
from elastream.simulator import HostFailure, Settings, Travel, make_plant

NAMES = ("plasticc", "waaf", "wpa", "wpp")
HOUR = 3600.0
GRAPH = Graph(
    "clicks",
    (
        Operator("web", Kind.SOURCE),
        Operator("app", Kind.SOURCE),
        Operator("parse", alternates=(Alternate("parse", cost=0.02),)),
        Operator(
            "score",
            alternates=(
                Alternate("deep", value=1.0, cost=0.2),
                Alternate("flat", value=0.7, cost=0.08),
                Alternate("guess", value=0.4, cost=0.03, selectivity=0.5),
            ),
        ),
        Operator("count", alternates=(Alternate("fine", value=1.0, cost=0.1), Alternate("rough", value=0.8, cost=0.05))),
        Operator("out", Kind.SINK),
    ),
    (Edge("web", "parse"), Edge("app", "parse"), Edge("parse", "score"), Edge("score", "count"), Edge("count", "out")),
)
TYPES = tuple(
    HostType(name, cores=cores, price=price, billing=Billing(HOUR), start=100.0)
    for name, cores, price in (("s", 1, 0.06), ("m", 2, 0.12), ("l", 4, 0.2))
)
RISE = steps((4, HOUR), (30, HOUR), (6, HOUR / 2))
LONG = 2.5 * HOUR
PLAIN = replace(
    GRAPH, operators=tuple(replace(o, alternates=o.alternates[:1]) if o.alternates else o for o in GRAPH.operators)
)
"""The same without anything to choose from: only hosts can answer a load."""


def named(text):
    return made(POLICY, *named_in(text, POLICY), References(Path()))


def run(policy, load=RISE, seconds=LONG, period=300.0, fused=False, look=lambda _: None, graph=GRAPH, speeds=None, **more):
    """(plant, run) of a policy, prepared for what comes."""
    faults = more.pop("faults", ())
    settings = Settings(monitor=60.0, travel=Travel.COHORTS, cohorts_above=0, faults=faults, speed_trace=speeds)
    layout, loads = lay_out(graph, chained=fused), {"web": load, "app": load.scaled(0.5)}
    policy = policy.prepared(prospect_of(layout, TYPES, loads, settings, seconds=seconds))
    plant = make_plant(layout, host_types=TYPES, loads=loads, settings=settings, seconds=seconds, **more)
    check_supported(policy, plant.context)
    return plant, simulated(plant, policy, period=period, until=seconds, look=look)


def backlog(observation):
    return float(np.nansum(observation.operators.column(Metric.BACKLOG)))


@pytest.mark.parametrize("name", NAMES)
def test_two_inputs_and_varying_hosts_carry_a_rise_and_a_fall(name):
    seen = []
    forecast = "" if name in ("caf", "waaf") else ":forecast=oracle"
    _, found = run(named(name + forecast), look=seen.append, speeds=SpeedWalk().over(LONG))
    assert found.refused == 0
    high = [each for each in seen if 1.5 * HOUR < each.time <= 2 * HOUR]
    assert backlog(seen[-1]) < 300 * 9, "less than what comes in an instant"
    if name != "waaf":
        assert max(map(backlog, high)) < 2 * 300 * 45
    assert max(len(each.usable) for each in high) > len(seen[0].usable)
    assert any("retracted" in decision.note or decision.outcomes for decision in found.decisions)


def test_plasticc_has_hosts_up_for_a_forecast_step_and_caf_does_not():
    def met(policy):
        seen = []
        run(policy, look=seen.append, graph=PLAIN)
        (at,) = [each for each in seen if each.time == HOUR]
        return sum(each.type.cores for each in at.leases.values()), sum(map(backlog, seen))

    (cores, worst), (late, behind) = met(Plasticc(forecast="oracle")), met(Caf())
    assert cores > late
    assert worst < behind / 2


def test_an_optimist_falls_behind_more_than_a_pessimist():
    def worst(policy):
        seen = []
        run(policy, look=seen.append, speeds=SpeedWalk().over(LONG))
        return sum(map(backlog, seen))

    assert worst(Wpo(forecast="oracle")) >= worst(Wpp(forecast="oracle"))


@pytest.mark.parametrize("fused", [False, True])
def test_a_real_forecaster_needs_nothing_but_what_is_measured(fused):
    seen = []
    policy = Plasticc(step=120.0, horizon=600.0, renew=240.0)
    _, found = run(policy, seconds=1.5 * HOUR, period=120.0, fused=fused, look=seen.append)
    assert found.refused == 0
    assert backlog(seen[-1]) < 300 * 45
    assert any("planned" in decision.note for decision in found.decisions)


@dataclass(frozen=True)
class Blind:
    """A forecaster that knows nothing, or less with every step."""

    known: int = 0
    settings: dict = field(default_factory=dict)
    name = "blind"
    learns = True

    def foresee(self, book, ahead, memory=None):
        mean = np.where(np.arange(ahead.steps) < self.known, 12.0, math.nan)
        return {subject: Outlook(mean, np.tile(mean, (len(QUANTILES), 1))) for subject in book}, memory

    def lacking(self):
        return ""


@pytest.mark.parametrize(("kind", "known"), [(Plasticc, 0), (Wpp, 2)])
def test_without_a_forecast_the_present_lasts_with_a_remark(kind, known):
    seen = []
    _, found = run(kind(forecast=Blind(known)), look=seen.append)
    assert backlog(seen[-1]) < 300 * 45
    assert any("cannot be foreseen" in decision.note for decision in found.decisions)


def test_an_oracle_is_refused_where_nothing_is_known_of_the_run():
    plant, _ = run(Caf(), seconds=300.0)
    with pytest.raises(DataflowError, match="simulated runs only"):
        check_supported(Plasticc(forecast="oracle"), plant.context)
    check_supported(Caf(forecast="oracle"), plant.context)


def test_forecasting_policy_without_its_library_is_refused(monkeypatch):
    plant, _ = run(Caf(), seconds=300.0)
    monkeypatch.setattr("elastream.policies.forecasting.seasonal.find_spec", lambda _: None)
    with pytest.raises(DataflowError, match=r"pip install 'elastream\[forecast\]'"):
        check_supported(Plasticc(), plant.context)
    check_supported(Caf(), plant.context)


def test_settings_come_from_the_command_line_or_are_refused():
    policy = named("plasticc:horizon=1h,step=10m,season=2h,forecast=real")
    assert (policy.horizon, policy.step) == (HOUR, 600.0)
    assert policy.forecaster == BackTested((2 * HOUR,))
    assert named("wpa:forecast=oracle,error=0.1,bias=-0.05").forecaster == Oracle(0.1, -0.05)
    for wrong in ("step=0", "step=2h", "renew=0", "forecast=stars", "error=3,forecast=oracle", "season=0"):
        with pytest.raises(InputError):
            named(f"plasticc:{wrong}")


def test_a_goal_that_no_plan_reaches_is_said():
    _, found = run(Plasticc(forecast="oracle"), max_hosts=3, graph=PLAIN)
    notes = [decision.note for decision in found.decisions]
    assert any("below the goal" in note and "at most 3 hosts may be leased" in note for note in notes)


def test_retracted_plans_and_reversed_actions_are_counted_separately():
    _, found = run(Plasticc(forecast="oracle", error=0.3, horizon=HOUR))
    said = [decision.note for decision in found.decisions if "so far" in decision.note]
    assert said
    assert "planned change" in said[-1]
    assert "enacted change" in said[-1]


def test_a_host_that_is_lost_makes_another_plan():
    seen = []
    run(Plasticc(forecast="oracle"), look=seen.append, faults=(HostFailure(1.25 * HOUR),))
    assert backlog(seen[-1]) < 2 * 300 * 45
