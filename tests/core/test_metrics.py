"""The table of metrics: what everything else that names a metric derives from."""

import math
import pickle
import runpy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.core.metrics import FIGURES, Metric, Quantity, Rows, quantity_of
from elastream.core.promises import PROMISES, Condition, PlantKind, promised
from elastream.core.wording import UNKNOWN, WRITERS, quantity
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, kafka, records, text_files
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Edge, Form, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.loads import constant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("metric", Metric)
def test_every_metric_has_a_meaning_and_a_plant_that_measures_it(metric: Metric) -> None:
    assert metric.meaning.endswith(".")
    assert PROMISES[metric]
    assert all(promise.how and promise.kinds and promise.plants for promise in PROMISES[metric])
    assert Metric[metric.value.upper()] is metric
    assert pickle.loads(pickle.dumps(metric)) is metric


@pytest.mark.parametrize("plant", PlantKind)
def test_every_plant_measures_what_the_loop_cannot_do_without(plant: PlantKind) -> None:
    for metric in (Metric.LATENCY, Metric.LATENCY_P99, Metric.THROUGHPUT, Metric.COST):
        assert list(promised(metric, Rows.APPLICATION, plant))


def test_a_metric_is_as_cheap_a_key_as_its_name() -> None:
    assert Metric.__hash__ is str.__hash__
    assert {Metric.CPU: 1}["cpu"] == 1


def test_no_figure_has_the_name_of_a_metric() -> None:
    assert not set(FIGURES) & set(Metric)


@given(st.sampled_from(Metric) | st.sampled_from(sorted(FIGURES)) | st.text(), st.none() | st.floats())
def test_any_value_of_any_name_can_be_written_and_unknown_is_a_dash(name: str, value: float | None) -> None:
    unknown = value is None or math.isnan(value)
    assert (quantity(name, value) == UNKNOWN) is unknown


def test_every_kind_of_value_has_a_writer() -> None:
    assert set(WRITERS) == set(Quantity)


def test_what_no_table_names_is_a_plain_number() -> None:
    assert quantity_of("latency of something else") is Quantity.COUNT


def test_the_reference_page_is_what_the_table_says() -> None:
    page = "\n".join(runpy.run_path(str(ROOT / "scripts" / "metrics_page.py"))["page"]())
    written = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    assert written == page + "\n", "run: python scripts/metrics_page.py > docs/reference/metrics.md"


def graph() -> Graph:
    operators = (
        Operator("lines", Kind.SOURCE),
        Operator("split", alternates=(Alternate("split", str.split, Form.FLAT_MAP),)),
        Operator("rename", alternates=(Alternate("rename", {"word": "upper(word)"}, Form.COLUMNS),), max_duration=1.0),
        Operator("count", Kind.KEYED, (Alternate("count", {"n": "count(*)"}, Form.AGGREGATE),), key=("word",)),
        Operator("out", Kind.SINK),
    )
    edges = (
        Edge("lines", "split"), Edge("split", "rename"), Edge("rename", "count", durable="parquet"), Edge("count", "out"),
    )  # fmt: skip
    return Graph("words", operators, edges)


@pytest.mark.parametrize(
    ("condition", "operators"),
    [
        (Condition.DECLARED_LOAD, ()),
        (Condition.MAX_DURATION, ("rename",)),
        (Condition.PYTHON, ("lines", "split", "out")),
        (Condition.DURABLE_INPUT, ("count",)),
        (Condition.STAGE_HEAD, ("lines", "count")),
        (Condition.QUERY_HEAD, ("lines", "count")),
        (Condition.OWN_PARALLELISM, ()),
    ],
)
def test_a_condition_is_decided_by_what_the_dataflow_declares(condition: Condition, operators: tuple[str, ...]) -> None:
    layout = lay_out(graph())
    assert tuple(o.name for o in layout.graph.operators if condition.holds(layout, None, o)) == operators


def test_a_condition_that_needs_a_running_plant_is_undecided() -> None:
    layout = lay_out(graph())
    assert Condition.SHUFFLES.holds(layout, None, layout.graph.operator("count")) is None


def test_a_target_latency_decides_what_needs_one() -> None:
    layout = lay_out(graph())
    assert (Condition.TARGET_LATENCY.holds(layout, 2.0), Condition.MAX_DURATIONS.holds(layout, 2.0)) == (True, False)
    assert (Condition.TARGET_LATENCY.holds(layout, None), Condition.MAX_DURATIONS.holds(layout, None)) == (False, True)


def test_arrivals_are_known_behind_operators_that_emit_one_per_record() -> None:
    flow = Dataflow("f")
    lines = flow.source(records([{"value": "a"}], "value string"), load=constant("1/s"), name="lines")
    lines.select({"w": "explode(split(value, ' '))"}, name="words").key_by("w").count(name="many").sink(collect("a"))
    lines.durable().select({"v": "upper(value)"}, name="upper").key_by("v").count(name="one").sink(collect("b"))
    layout = lay_out(flow.graph)
    told = {
        o.name for o in flow.graph.operators if o.kind is not Kind.SINK and Condition.INPUT_METERED.holds(layout, None, o)
    }
    assert told == {"lines", "words", "upper", "one"}
    assert [Condition.ONE_TO_ONE.holds(layout, None, flow.graph.by_name[name]) for name in ("words", "upper")] == [
        False,
        True,
    ]
    assert [o.name for o in flow.graph.operators if Condition.OWN_PARALLELISM.holds(layout, None, o)] == ["lines", "upper"]


def test_backlog_is_promised_if_every_source_can_report_its_own() -> None:
    for reads, known in ((text_files("in/"), True), (text_files("s3a://in/"), None), (kafka("t"), None)):
        flow = Dataflow("f")
        flow.source(reads, name="in").sink(collect("out"))
        assert Condition.SOURCES_COUNTED.holds(lay_out(flow.graph), None) is known
