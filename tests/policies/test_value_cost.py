"""Value against cost, end to end in simulation: dataflows, price lists and loads that nothing here was built with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from elastream.core.frames import Frame
from elastream.core.hosts import Billing, HostType
from elastream.core.observation import Observation
from elastream.core.plant import check_supported
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.documents.registry import POLICY, imported, made, named_in
from elastream.documents.user_code import References
from elastream.errors import DataflowError, ElastreamError
from elastream.evaluation.trials import SimulatedRun, simulated
from elastream.loads import constant, ramp, steps
from elastream.policies.value_cost.policy import Centralised, Sharded, ValueCost
from elastream.simulator import Service, Settings, SimulatedPlant, make_plant
from elastream.simulator.settings import Distribution
from support.simulated_plants import line as in_line

HOUR = Billing(3600.0)
SECOND = Billing(1.0, 60.0)
PRICES = (
    HostType("dear", cores=8.0, speed=1.5, price=2.4, billing=HOUR, start=60.0),
    HostType("plain", cores=2.0, speed=1.0, price=0.2, billing=HOUR, start=60.0),
    HostType("slow", cores=1.0, speed=0.5, price=0.06, billing=HOUR, start=90.0),
)
BY_SECOND = tuple(
    HostType(name, cores=cores, price=price / 3600, billing=SECOND, start=30.0)
    for name, cores, price in (("c2", 2.0, 0.1), ("c4", 4.0, 0.2), ("c16", 16.0, 0.7))
)
STEADY = Service(Distribution.DETERMINISTIC)


def grid() -> Graph:
    """Two sources, a diamond, two sinks; two operators with alternates, one of which sends on half."""
    return Graph(
        "grid",
        (
            Operator("meters", Kind.SOURCE, cores=0.0),
            Operator("weather", Kind.SOURCE, cores=0.0),
            Operator("parse", alternates=(Alternate("parse", cost=0.02),)),
            Operator("forecast", alternates=(
                Alternate("deep", value=1.0, cost=0.3), Alternate("tree", value=0.85, cost=0.1),
                Alternate("mean", value=0.4, cost=0.02),
            )),
            Operator("detect", alternates=(
                Alternate("all", cost=0.06), Alternate("sampled", value=0.7, cost=0.05, selectivity=0.5),
            )),
            Operator("join", alternates=(Alternate("join", cost=0.04),)),
            Operator("alarm", alternates=(Alternate("alarm", cost=0.01),)),
            Operator("store", Kind.SINK, cores=0.0),
            Operator("page", Kind.SINK, cores=0.0),
        ),
        (
            Edge("meters", "parse"), Edge("parse", "forecast"), Edge("parse", "detect"), Edge("weather", "join"),
            Edge("forecast", "join"), Edge("detect", "alarm"), Edge("join", "store"), Edge("alarm", "page"),
        ),
    )  # fmt: skip


def line() -> Graph:
    """A long row of operators, each with a cost of its own, the last of which has alternates."""
    steps = [Operator(f"step{n}", alternates=(Alternate(f"step{n}", cost=0.02 * (n + 1)),)) for n in range(5)]
    last = Operator("step5", alternates=(Alternate("good", cost=0.2), Alternate("poor", value=0.5, cost=0.05)))
    return in_line("line", Operator("in", Kind.SOURCE, cores=0.0), *steps, last, Operator("out", Kind.SINK, cores=0.0))


@dataclass(frozen=True)
class Case:
    """A dataflow, what may be leased, and a load for each source."""

    graph: Graph
    types: Sequence[HostType]
    loads: Mapping[str, ArrivalPattern]
    seconds: float
    period: float = 120.0
    max_hosts: int = 200

    def plant(self, *, fused: bool = False) -> SimulatedPlant:
        return make_plant(
            lay_out(self.graph, chained=fused),
            host_types=self.types,
            loads=self.loads,
            settings=Settings(monitor=30.0, services={o.name: STEADY for o in self.graph.operators if o.alternates}),
            max_hosts=self.max_hosts,
            seed=3,
            seconds=self.seconds,
        )

    def run(self, policy: ValueCost, *, fused: bool = False) -> tuple[SimulatedRun, list[Observation]]:
        seen: list[Observation] = []
        return simulated(self.plant(fused=fused), policy, period=self.period, until=self.seconds, look=seen.append), seen


CASES = {
    "grid, hours": Case(
        grid(), PRICES, {"meters": steps((20, 2000), (80, 2000), (5, 2000)), "weather": constant(1, 6000)}, 6000.0, 300.0
    ),
    "line, seconds": Case(line(), BY_SECOND, {"in": ramp(2, 40, 1800)}, 1800.0, 60.0),
}


def processed(run: SimulatedRun, case: Case) -> float:
    """Part of the records that came in that the operators behind the sources did not leave waiting."""
    left = sum(each.queued + each.in_service for each in run.result.operators.values())
    return 1 - left / sum(load.count(case.seconds) for load in case.loads.values())


@pytest.mark.parametrize("name", ["ce", "sh"])
@pytest.mark.parametrize("case", CASES)
def test_a_dataflow_that_nobody_has_seen_is_kept_at_its_goal(name: str, case: str) -> None:
    of = CASES[case]
    policy = imported(POLICY.known[name])()
    run, seen = of.run(policy)
    assert run.refused == 0
    assert not run.lacked
    assert processed(run, of) > 0.9
    graph = of.graph
    for each in seen:
        for host, lease in each.leases.items():
            row = each.hosts.rows[host]
            held = sum(
                graph.by_name[task.operator].cores
                for task, at in zip(each.tasks.tasks, each.tasks.host, strict=True)
                if at == row
            )
            assert held <= lease.type.cores + 1e-6


@pytest.mark.parametrize("name", ["ce", "sh"])
def test_where_tasks_share_cores_hosts_follow_the_load(name: str) -> None:
    of = replace(CASES["line, seconds"], period=30.0)
    run, seen = of.run(imported(POLICY.known[name])(), fused=True)
    assert run.refused == 0
    assert processed(run, of) > 0.9
    assert sum(seen[-1].capacities.values()) > 4 * sum(seen[0].capacities.values())


def test_the_centralised_policy_costs_less_than_the_sharded_one() -> None:
    of = CASES["grid, hours"]
    assert of.run(Centralised())[0].result.cost < of.run(Sharded())[0].result.cost


def test_hosts_go_after_the_load_at_the_end_of_their_paid_time() -> None:
    of = replace(
        CASES["grid, hours"], loads={"meters": steps((60, 1800), (1, 6000)), "weather": constant(1, 7800)}, seconds=7800.0
    )
    run, seen = of.run(Centralised())
    rates = [sum(lease.type.price for lease in each.leases.values()) for each in seen]
    assert rates[-1] < max(rates) / 4
    for lease in run.result.ledger:
        if lease.until is not None and lease.until < 7800 - 1:
            assert lease.remaining(lease.until) < 900


def test_with_too_few_hosts_the_shortfall_is_reported() -> None:
    of = replace(CASES["line, seconds"], max_hosts=4, types=BY_SECOND[:1])
    run, seen = of.run(Centralised())
    assert max(len(each.leases) for each in seen) == 4
    notes = [d.note for d in run.decisions if d.note]
    assert any("below the goal, for want of" in note and "at most 4 hosts may be leased" in note for note in notes)


def test_a_policy_without_rates_and_costs_says_so() -> None:
    of = CASES["line, seconds"]
    plant = of.plant()
    plant.advance(60.0)
    seen = plant.observe()
    blind = replace(seen, operators=Frame(seen.operators.ids, {}), alternates=Frame(), history=())
    for policy in (Centralised(), Sharded()):
        plan = policy.plan(blind)
        assert plan.actions == ()
        assert plan.unknown


@pytest.mark.parametrize(
    "text", ["ce:throughput=0", "ce:throughput=1.2", "sh:tolerance=0.9", "ce:alternates=0", "ce:instant=0"]
)
def test_settings_that_reach_nothing_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ElastreamError, match=r"must be|above 0"):
        made(POLICY, *named_in(text, POLICY), References(Path()))


def test_without_a_type_of_host_it_is_refused_before_a_run() -> None:
    context = replace(CASES["line, seconds"].plant().context, host_types={})
    for policy in (Centralised(), Sharded()):
        with pytest.raises(DataflowError, match="no type of host to lease"):
            check_supported(policy, context)
