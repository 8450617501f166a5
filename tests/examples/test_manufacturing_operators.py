"""The operators of the manufacturing example one by one, and what its check finds."""

import json
from types import SimpleNamespace

import manufacturing as factory
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.dataflow.operators import Delivery
from elastream.dataflow.stages import lay_out
from elastream.loads import steps

LOAD = steps(2, 3, every=2 * factory.TICK)
LINE = factory.Line.of(LOAD)


def in_batches(operator, key, rows, cuts):
    """What a keyed operator emits for `rows` cut into batches at `cuts`, and the state that it is left with."""
    state, emitted = None, []
    for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        if first < last:
            result, state = operator(key, pd.DataFrame(rows[first:last]), state)
            emitted += result.to_dict("records")
    return emitted, state


def cuts(size):
    return st.lists(st.integers(0, size), max_size=3).map(sorted)


def test_the_dataflow_is_that_of_the_paper(tmp_path):
    graph = factory.dataflow(LINE, tmp_path).graph
    edges = {(edge.source, edge.target) for edge in graph.edges}
    assert edges == {
        ("production_data", "parse"), ("parse", "performance"), ("parse", "availability"), ("parse", "quality"),
        ("performance", "oee"), ("availability", "oee"), ("quality", "oee"), ("oee", "report"), ("report", "inform"),
        ("availability_sensor", "filter_availability"), ("filter_availability", "inform"),
        ("temperature_sensor", "monitor_temperature"), ("monitor_temperature", "inform"), ("inform", "user"),
    }  # fmt: skip
    durable = {(edge.source, edge.target) for edge in graph.edges if edge.durable}
    assert {("production_data", "parse"), ("oee", "report")} < durable
    assert [segment.name for segment in lay_out(graph).segments if len(segment.inputs) == 3] == ["inform"]
    assert all(edge.delivery is Delivery.DUPLICATE for edge in graph.outputs["parse"])


STATUS = st.lists(st.sampled_from(["available", "planned", "defect"]), max_size=30)


HEAT = st.lists(st.sampled_from([20.0, 90.0, 90.1, 99.0]), max_size=30)
WARNINGS = {
    "a defect": (factory.filter_availability, "status", STATUS, lambda status: status == "defect"),
    "too hot": (factory.monitor_temperature, "temperature", HEAT, lambda degrees: degrees > 90),
}


@pytest.mark.parametrize("warning", WARNINGS)
@given(data=st.data())
def test_each_new_warning_is_reported_once_however_batches_fall(warning, data):
    operator, field, values, warns = WARNINGS[warning]
    measured = data.draw(values)
    rows = [{"machine": "M1", "number": number, field: value} for number, value in enumerate(measured)]
    told, _ = in_batches(operator, ("M1",), rows, data.draw(cuts(len(rows))))
    begun = [warns(value) and not (n and warns(measured[n - 1])) for n, value in enumerate(measured)]
    assert [row["number"] for row in told] == [n for n, begins in enumerate(begun) if begins]


def parts_of(reading):
    item = vars(SimpleNamespace(**{field: getattr(reading, field) for field in reading.__slots__}))
    return [operator(item) for operator in (factory.performance, factory.availability, factory.quality)]


@given(order=st.permutations(range(12)), data=st.data())
def test_an_oee_is_reported_once_all_its_parts_came_in_any_order(order, data):
    readings = [each for each in LINE.emitted if each.machine == "M1"][:4]
    parts = [part for each in readings for part in parts_of(each)]
    rows = [parts[position] for position in order]
    found, state = in_batches(factory.calculate_oee, ("M1",), rows, data.draw(cuts(len(rows))))
    assert sorted(row["cycle"] for row in found) == [1, 2, 3, 4]
    assert json.loads(state[0]) == {}
    for row in found:
        assert row["oee"] == factory.figure_of(json.loads(row["used"]))


def values(count):
    figures = dict.fromkeys(("availability", "performance", "quality", "oee"), 0.5)
    return [{"line": "line 1", "machine": f"M{n % 4}", "cycle": n, "used": "{}", **figures} for n in range(count)]


@pytest.mark.parametrize("sizes", [[40], [1] * 40, [15, 1, 17, 7]])
def test_every_full_count_of_values_becomes_a_report_and_the_rest_waits(tmp_path, sizes):
    rows, ends = values(40), [sum(sizes[: n + 1]) for n in range(len(sizes))]
    report = factory.partial(factory.generate_report, str(tmp_path))
    told, state = in_batches(report, ("line 1",), rows, ends[:-1])
    assert [row["number"] for row in told] == [1, 2]
    assert [value["cycle"] for row in told for value in json.loads(row["detail"])] == list(range(32))
    assert len(json.loads(state[0])) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report-001.pdf", "report-002.pdf"]


# -- the check ---------------------------------------------------------------------------------------------------------


def told(folder, line, change=lambda rows, warnings: None):
    """The notices that a right run leaves in `folder`, after `change`."""
    parts = [row for each in line.emitted for row in parts_of(each)]
    rows = []
    for machine in sorted({row["machine"] for row in parts}):
        found, _ = in_batches(factory.calculate_oee, (machine,), [row for row in parts if row["machine"] == machine], [])
        rows += found
    report = factory.notice("report", "line 1", 1, "", rows[: factory.REPORT_OF])
    warnings = [
        factory.notice(kind, machine, number, "")
        for kind, found in (("defect", factory.defects_of(line)), ("temperature", factory.heat_of(line)))
        for machine, number in found
    ]
    change(rows, warnings)
    report["detail"] = json.dumps(rows[: factory.REPORT_OF])
    (folder / "notices").mkdir()
    pq.write_table(pa.Table.from_pylist([report, *warnings]), folder / "notices" / "part-0.parquet")


WHOLE = factory.Line.of(steps(8, every=2 * factory.TICK))  # 16 readings: one report


def lost(rows, warnings):
    rows.pop()


def miscalculated(rows, warnings):
    rows[3]["oee"] = 0.123


def misread(rows, warnings):
    for row in rows:
        used = json.loads(row["used"]) | {"produced": 1, "total_time": 7}
        row["used"], row["oee"] = json.dumps(used), factory.figure_of(used)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lost, r"readings in reports: \(15, 1\) arrived, \(16, 1\) expected"),
        (miscalculated, r"OEE of M\d, cycle \d+: 0.123 arrived"),
        (misread, "OCR read only"),
    ],
)
def test_a_wrong_run_ends_with_what_is_wrong(tmp_path, change, complaint):
    told(tmp_path, WHOLE, change)
    with pytest.raises(SystemExit, match=complaint):
        factory.check(WHOLE, tmp_path)
