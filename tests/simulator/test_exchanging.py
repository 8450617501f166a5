"""What simulated tasks send each other."""

import math

import numpy as np
import pytest

from elastream.core.hosts import HostType
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings, Travel, make_plant
from support.simulated_plants import chain, operator, travelling

KIND = HostType("host", cores=4.0)


def two_operators(hosts=2, **options):
    """Source > first x 2 > second x 2 > sink, ten records a second, two out of `first` for one in."""
    return make_plant(
        chain(operator("first", 0.001, selectivity=2.0), operator("second", 0.001)),
        host_types=[KIND],
        hosts=hosts,
        loads={"source": Emissions.every(1.0, [10] * 60, spread=True)},
        parallelism={"first": 2, "second": 2},
        **options,
    )


SIZES = {"source": 50.0, "first": 100.0}


@pytest.mark.parametrize("travel", [Travel.SINGLE, Travel.COHORTS])
def test_traffic_is_spread_evenly_over_the_instances(travel):
    plant = two_operators(settings=Settings(monitor=10.0, record_bytes=SIZES, **travelling(travel)))
    plant.advance(20.0)
    seen = plant.observe()
    exchange = seen.exchange
    assert exchange.known
    within, between = exchange.split(seen.tasks.host)
    assert within == pytest.approx(between)
    from_outside = exchange.source < 0
    assert exchange.rate[from_outside] == pytest.approx([250.0, 250.0], rel=0.02)
    assert exchange.rate[~from_outside] == pytest.approx([500.0] * 4, rel=0.02)
    assert sorted(zip(exchange.source[~from_outside], exchange.target[~from_outside], strict=True)) == [
        (0, 2), (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip


def test_without_a_size_of_records_the_exchange_is_unknown():
    assert not two_operators(settings=Settings(record_bytes=SIZES)).observe().exchange.known, "the first period"
    plant = two_operators()
    plant.advance(20.0)
    exchange = plant.observe().exchange
    assert not exchange.known
    assert not len(exchange)
    assert all(math.isnan(part) for part in exchange.split(plant.observe().tasks.host))


def test_an_operators_declared_record_size_is_the_default():
    first = Operator("first", alternates=(Alternate("first", cost=0.001),), record_bytes=100.0)
    layout = chain(first, operator("second", 0.001))
    plant = make_plant(
        layout,
        host_types=[KIND],
        loads={"source": Emissions.every(1.0, [10] * 60, spread=True)},
        settings=Settings(monitor=10.0, record_bytes={"source": 0.0}),
    )
    plant.advance(20.0)
    assert plant.observe().exchange.rate == pytest.approx([1000.0], rel=0.02)


def test_state_partitions_of_micro_batches_have_a_sender_without_a_host():
    graph = Graph(
        "words",
        (
            Operator("lines", Kind.SOURCE, record_bytes=80.0),
            Operator("split", alternates=(Alternate("split", cost=0.0001),), record_bytes=10.0),
            Operator("count", Kind.KEYED, (Alternate("count", cost=0.0001),), key=("word",)),
            Operator("out", Kind.SINK, cores=0.0),
        ),
        (Edge("lines", "split"), Edge("split", "count", Delivery.KEYED), Edge("count", "out")),
    )
    plant = make_plant(
        lay_out(graph),
        host_types=[KIND],
        hosts=2,
        loads={"lines": Emissions.every(1.0, [100] * 60, spread=True)},
        settings=Settings(monitor=1.0, state_partitions=4),
    )
    plant.advance(20.0)
    exchange = plant.observe().exchange
    assert (exchange.source == -1).all()
    assert exchange.target.tolist() == [0, 1, 2, 3]
    assert exchange.rate.sum() == pytest.approx(1000.0, rel=0.2)
    assert np.ptp(exchange.rate) == pytest.approx(0.0)
