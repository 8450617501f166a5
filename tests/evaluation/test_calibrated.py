"""The dataflow of a recorded run, as the simulator is calibrated with it."""

from types import SimpleNamespace
from typing import Any, cast

from elastream.core.observation import Context
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, records
from elastream.dataflow.stages import lay_out
from elastream.evaluation.drift import _graph
from elastream.recording.observer import describe_run


def last(key: Any, rows: Any, state: Any) -> Any:
    return rows, state


def test_a_dataflow_is_read_back_from_the_header_of_its_run() -> None:
    flow = Dataflow("grid")
    meters = flow.source(records([], "customer string, load double"), name="meters")
    both = {"exact": float, "rough": abs}
    chosen = meters.map(both, returns="customer string, load double", name="forecast", select_by="customer")
    chosen.signal("mean_load", "mean(load)")
    keyed = (
        chosen.durable()
        .key_by("customer")
        .apply(
            {"a": last, "b": last},
            returns="customer string, load double",
            state="n int",
            select_by="customer",
            name="level",
        )
    )
    keyed.choice("peak", value=0.5).nothing()
    keyed.choice("peak").durable().window(count=2).join(meters.durable(), on="customer", name="pairs").sink(collect("x"))
    header = describe_run(Context(lay_out(flow.graph)), policy="p", plant="spark", started=0.0)
    read = _graph(cast(Any, SimpleNamespace(header=header)), "runs/grid")
    assert read.edges == flow.graph.edges
    for operator in flow.graph.operators:
        there = read.operator(operator.name)
        assert there.selects == operator.selects
        assert [each.name for each in there.alternates] == [each.name for each in operator.alternates]
