"""What a record costs under a composition: by its alternates, by key tables, and by what was measured of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.action import SetKeyTable, Status, SwitchAlternate, UpdateCode
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.core.observation import Composition
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, KeyTableBook
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, make_plant
from elastream.simulator.costs import costs_of, own_cost, shares_in, unsimulated

COSTS = {"a": (0.001, 1.0), "b": (0.004, 0.5), "c": (0.010, 2.0)}
GRAPH = Graph(
    "customers",
    (
        Operator("source", Kind.SOURCE, returns="customer string"),
        Operator(
            "forecast",
            Kind.TRANSFORM,
            tuple(Alternate(name, cost=cost, selectivity=each) for name, (cost, each) in COSTS.items()),
            returns="customer string",
            selects=("customer",),
        ),
        Operator("sink", Kind.SINK),
    ),
    (Edge("source", "forecast"), Edge("forecast", "sink")),
)


def table(rows) -> KeyTable:
    return KeyTable("customers", "forecast", ("customer",), {(name,): alternate for name, alternate in rows.items()})


def under(version, alternate="a") -> Composition:
    return Composition(1, {"forecast": alternate}, {}, {}, {"forecast": version})


def cost(composition, book, settings=None):
    settings = settings or Settings()
    return costs_of(GRAPH, settings, shares_in(GRAPH, settings, composition, book))["forecast"]


keys = st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.sampled_from(sorted(COSTS)), min_size=1, max_size=8)


@given(rows=keys, otherwise=st.sampled_from(sorted(COSTS)))
def test_a_key_table_weighs_costs_by_the_shares_of_its_keys(rows, otherwise):
    work, selectivity = cost(under(1, otherwise), KeyTableBook(table(rows)))
    assert work == pytest.approx(sum(COSTS[each][0] for each in rows.values()) / len(rows))
    assert selectivity == pytest.approx(sum(COSTS[each][1] for each in rows.values()) / len(rows))
    assert cost(under(0, otherwise), KeyTableBook(table(rows))) == COSTS[otherwise]


@given(
    rows=keys, weights=st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.floats(0.1, 9.0), min_size=1, max_size=8)
)
def test_keys_without_a_row_run_the_alternate_of_all_others(rows, weights):
    settings = Settings(key_weights={"forecast": {(name,): weight for name, weight in weights.items()}})
    work, _ = cost(under(1, "c"), KeyTableBook(table(rows)), settings)
    total = sum(weights.values())
    assert work == pytest.approx(sum(COSTS[rows.get(name, "c")][0] * weight / total for name, weight in weights.items()))


def test_measurements_of_an_alternate_override_those_of_its_operator():
    service = Settings().service("forecast").costing(0.5, 0.25, {"b": (0.7, None)})
    settings = Settings(services={"forecast": service})
    operator = GRAPH.by_name["forecast"]
    assert own_cost(operator, operator.alternate("a"), settings) == COSTS["a"], "as declared: another one was measured"
    whole = Settings(services={"forecast": Settings().service("forecast").costing(0.5, 0.25)})
    assert own_cost(operator, operator.alternate("a"), whole) == (0.5, 0.25)
    assert own_cost(operator, operator.alternate("b"), settings) == (0.7, 0.5)


@pytest.mark.parametrize("fused", [True, False])
def test_a_running_plant_takes_its_key_table_and_refuses_a_foreign_one(fused):
    book = KeyTableBook(table({"x": "a", "y": "c"}))
    plant = make_plant(
        lay_out(GRAPH, chained=fused),
        host_types=[HostType("big", cores=8.0, slots=8)],
        loads={"source": Emissions.every(1.0, [100] * 60, spread=True)},
        settings=Settings(monitor=1.0),
        tables=book,
    )
    plant.advance(10.0)
    (refused,) = plant.switch([SetKeyTable("forecast", 2)])
    assert (refused.status, refused.reason) == (Status.REFUSED, "operator 'forecast' has no key table of version 2")
    (accepted,) = plant.switch([SetKeyTable("forecast", 1)])
    assert accepted.status is Status.ACCEPTED
    plant.advance(20.0)
    seen = plant.observe()
    assert all(each.tables == {"forecast": 1} for each in seen.effective.values())
    assert seen.alternates.value("forecast.c", Metric.SERVICE_TIME) == pytest.approx(0.010, rel=0.2)
    assert seen.alternates.value("forecast.c", Metric.SELECTIVITY) == pytest.approx(2.0, rel=0.05)
    assert set(seen.alternates.ids) == {"forecast.a", "forecast.c"}
    busy = seen.operators.value("source" if fused else "forecast", Metric.BUSY_CORES)
    assert busy == pytest.approx(100 * (0.001 + 0.010) / 2, rel=0.15)
    book.append(KeyTable("another", "forecast", ("customer",), {("x",): "a"}))
    (other,) = plant.switch([SetKeyTable("forecast", 2)])
    assert other.status is Status.REFUSED
    assert "is of dataflow 'another'" in other.reason
    off, alternate = plant.switch([SetKeyTable("forecast", 0), SwitchAlternate("forecast", "b")])
    assert off.succeeded
    assert alternate.succeeded
    plant.advance(30.0)
    assert set(plant.observe().alternates.ids) == {"forecast.a", "forecast.c", "forecast.b"}


def test_a_simulation_refuses_new_code():
    assert "runs no code" in unsimulated(GRAPH, UpdateCode(1, ("forecast",)), Settings(), KeyTableBook())
