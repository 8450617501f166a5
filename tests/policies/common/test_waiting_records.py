"""What waits for an operator, apart and fused, without what is on its way."""

import math
from dataclasses import replace

import pytest

from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import HostType
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.policies.btu import Btu
from elastream.policies.common.queues import fixed_queue, measured_at, service_levels, waiting
from elastream.policies.queue_threshold import QueueThreshold

NAN = math.nan
GRAPH = Graph(
    "two sources, which a keyed operator joins",
    (
        *(Operator(name, Kind.SOURCE, cores=0) for name in ("left", "right")),
        Operator("work", Kind.TRANSFORM, (Alternate("work", cost=0.1),)),
        Operator("both", Kind.KEYED, (Alternate("both", cost=0.1),), key=("k",)),
        Operator("out", Kind.SINK, cores=0),
    ),
    (Edge("left", "both"), Edge("right", "work"), Edge("work", "both"), Edge("both", "out")),
)
KINDS = {"small": HostType("small", cores=1)}


def context(*, fused: bool, scalable: tuple[str, ...] = ("left", "right", "work"), target: float | None = 6.0) -> Context:
    return Context(lay_out(GRAPH, chained=fused), KINDS, target, 9, 1, scalable=frozenset(scalable))


def observe(seen: Context, batch: float = NAN, **of: tuple[float, float]) -> Observation:
    """of: (records that wait, records/s that arrive) by operator."""
    names = [operator.name for operator in GRAPH.operators]
    columns = {
        metric: [of.get(name, (NAN, NAN))[at] for name in names]
        for at, metric in enumerate((Metric.BACKLOG, Metric.ARRIVAL_RATE))
    }
    found = Observation(1.0, seen, Frame(names, columns), hosts=Frame(()), tasks=TaskFrame((), (), (), names))
    return replace(found, application=Frame((GRAPH.name,), {Metric.BATCH_DURATION: [batch]}))


@pytest.mark.parametrize(
    ("queue", "rate", "waits"),
    [(900.0, 10_000.0, 400.0), (400.0, 10_000.0, 0.0), (51.0, 19.0, 51.0), (51.0, NAN, 51.0), (NAN, 10_000.0, NAN)],
)
def test_apart_what_comes_within_a_moment_does_not_wait(queue, rate, waits):
    seen = context(fused=False)
    unit = next(each for each in seen.units if each.name == "work")
    assert waiting(observe(seen, work=(queue, rate)), unit) == pytest.approx(waits, nan_ok=True)


def test_chained_stages_share_the_queue_of_their_query():
    seen = context(fused=True)
    found = observe(seen, batch=2.0, left=(1000.0, 50.0), right=(NAN, 150.0))
    assert [waiting(found, unit) for unit in seen.units] == [600.0] * len(seen.units)
    assert [waiting(observe(seen, left=(1000.0, 50.0)), unit) for unit in seen.units] == [1000.0] * len(seen.units)
    assert all(math.isnan(waiting(observe(seen, batch=2.0), unit)) for unit in seen.units)


def test_reading_stage_has_the_service_level_of_its_query():
    seen = context(fused=True)
    assert service_levels(seen) == {"left": 3.0, "right": 3.0, "both": 3.0}
    assert [measured_at(seen, unit) for unit in seen.units if unit.scalable] == [("left",), ("right", "work", "left")]
    assert Btu().unsupported_reason(seen) is None
    assert "the dataflow has none" in Btu().unsupported_reason(context(fused=True, target=None))


TWO = Graph(
    "one query that can be widened, and behind a durable edge one that has state alone",
    (
        Operator("left", Kind.SOURCE, cores=0),
        Operator("work", Kind.TRANSFORM, (Alternate("work", cost=0.1),)),
        Operator("report", Kind.KEYED, (Alternate("report", cost=0.1),), key=("k",)),
        Operator("out", Kind.SINK, cores=0),
    ),
    (Edge("left", "work"), Edge("work", "report", durable="parquet"), Edge("report", "out")),
)


@pytest.mark.parametrize("policy", [Btu(), QueueThreshold()])
@pytest.mark.parametrize(("waits", "said"), [(50.0, 0), (NAN, 0), (51.0, 1)])
def test_plan_names_a_late_query_that_cannot_be_widened(policy, waits, said):
    seen = Context(lay_out(TWO), KINDS, 6.0, 9, 1, scalable=frozenset({"left"}))
    assert policy.unsupported_reason(seen) is None
    names = [operator.name for operator in TWO.operators]
    queues = Frame(names, {Metric.BACKLOG: [waits if name == "report" else 0.0 for name in names]})
    found = Observation(1.0, seen, queues, hosts=Frame(()), tasks=TaskFrame((), (), (), names))
    found = replace(found, application=Frame((TWO.name,), {Metric.BATCH_DURATION: [NAN]}))
    remarks = policy.plan(found).remarks
    assert len(remarks) == said
    assert all("no instance can be added where records wait: 51 wait for 'report'" in each for each in remarks)


def test_instances_help_a_query_of_which_any_stage_can_have_more():
    assert fixed_queue(context(fused=True, scalable=("right",))) == ""
    assert "no operator" in fixed_queue(context(fused=True, scalable=()))
