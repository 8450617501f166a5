"""The table of update latency against consistency, on dataflows that no experiment was built with."""

import itertools
import math

import pytest

from elastream.core.composition import Consistency
from elastream.core.hosts import HostType
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.simulator import Emissions, Settings
from elastream_papers.thesis.dynamic_dataflow.consistency import consistency_table, switches_at_random

HOST = HostType("host", cores=4.0, slots=8)


def graph(queries: int) -> Graph:
    """A chain of operators with two alternates each, a query for each."""
    work = [
        Operator(f"o{n}", Kind.TRANSFORM, (Alternate("a", cost=0.001), Alternate("b", cost=0.002))) for n in range(queries)
    ]
    names = ["source", *(each.name for each in work), "sink"]
    edges = tuple(
        Edge(a, b, durable="parquet" if a != "source" and b != "sink" else None) for a, b in itertools.pairwise(names)
    )
    return Graph("chain", (Operator("source", Kind.SOURCE), *work, Operator("sink", Kind.SINK)), edges)


@pytest.mark.parametrize("fused", [True, False])
def test_every_mode_has_a_row_and_consistency_costs_time(fused):
    whole = graph(3)
    schedule = switches_at_random(whole, [10.3, 22.7, 31.1], seed=3)
    rows = consistency_table(
        lay_out(whole, chained=fused),
        [HOST],
        {"source": Emissions.every(1.0, [100] * 60, spread=True)},
        schedule,
        hosts=2,
        settings=Settings(monitor=1.0),
    )
    table = {row.mode: row for row in rows}
    assert set(table) == set(Consistency)
    for row in rows:
        assert len(row.latencies) == len(row.delays) == len(row.mixed) == 3
        assert all(math.isfinite(each) for each in (*row.latencies, *row.delays))
    assert table[Consistency.WAVE].mixed_records == table[Consistency.DRAIN].mixed_records == 0
    assert table[Consistency.REWIRED].mixed_records >= table[Consistency.BATCH].mixed_records
    assert table[Consistency.REWIRED].latency == 0
    assert table[Consistency.DRAIN].delay >= table[Consistency.WAVE].delay >= table[Consistency.BATCH].delay
    assert table[Consistency.DRAIN].finished >= table[Consistency.BATCH].finished


def test_a_schedule_follows_its_seed_and_each_plan_changes_something():
    whole = graph(4)
    schedule = switches_at_random(whole, range(1, 30), seed=7)
    assert schedule == switches_at_random(whole, range(1, 30), seed=7)
    assert schedule != switches_at_random(whole, range(1, 30), seed=8)
    now = {operator.name: "a" for operator in whole.operators if operator.alternates}
    for _, plan in schedule:
        assert all(now[switch.operator] != switch.alternate for switch in plan)
        now |= {switch.operator: switch.alternate for switch in plan}
