"""`check` says of any document what compiling it, and simulating it, would say: one sentence with file, line and field."""

import copy
import json
import re
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import Result

from elastream.dataflow.compiling import plan_queries, simulated_only
from elastream.dataflow.stages import lay_out
from elastream.documents.dataflow import load_document
from elastream.errors import ElastreamError
from elastream.simulator import make_plant
from support.commands import invoke
from support.property_examples import examples

SCHEMAS = ("n long, word string", "n long", "word string", "n int")
EXPRESSIONS = ("n + 1", "word", "lower(word)", "count(*)", "max(n)", "n +", "missing")


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:  # noqa: C901
    """A dataflow of 1 to 2 sources, up to 5 operators, and a sink wherever records would go nowhere."""
    operators: dict[str, Any] = {}
    real = draw(st.booleans())
    for number in range(draw(st.integers(1, 2))):
        reads = {"records": [{"n": 1}], "schema": draw(st.sampled_from(SCHEMAS))} if real else "simulated"
        operators[f"source{number}"] = {"source": reads, **({"load": {"constant": "5/s", "lasts": "10s"}} if real else {})}
        if real:
            operators[f"source{number}"]["load"] = {"constant": {"rate": "5/s", "lasts": "10s"}}
    for number in range(draw(st.integers(0, 5))):
        inputs = draw(st.lists(st.sampled_from(sorted(operators)), min_size=1, max_size=2, unique=True))
        edges = [{"operator": each, **draw(st.sampled_from([{}, {}, {"durable": "parquet"}]))} for each in inputs]
        operator: dict[str, Any] = {"from": edges}
        kind = draw(st.sampled_from(["map", "filter", "select", "aggregate"] if real else ["alternates"]))
        match kind:
            case "map":
                operator |= {"map": "builtins:dict", "returns": draw(st.sampled_from(SCHEMAS))}
            case "filter":
                operator |= {"filter": "builtins:bool"}
            case "select":
                operator |= {"select": {"n": draw(st.sampled_from(EXPRESSIONS))}}
            case "aggregate":
                operator |= {"key_by": draw(st.sampled_from(["n", "word"])), "aggregate": {"n": "count(*)"}}
            case "alternates":
                operator |= {"alternates": {"a": {"cost": "1ms"}}}
        if real:
            operator["cost"] = "1ms"
        operator["cores"] = draw(st.sampled_from([0.25, 0.5, 1, 3]))
        operators[f"step{number}"] = operator
    fed = {edge["operator"] for each in operators.values() for edge in each.get("from", [])}
    for name in sorted(set(operators) - fed):
        operators[f"out_{name}"] = {"from": [name], "sink": {"collect": name} if real else "simulated"}
    document: dict[str, Any] = {"dataflow": "any", "operators": operators}
    if draw(st.booleans()):
        document["target_latency"] = draw(st.sampled_from(["2s", "1ms", "1d"]))
    if draw(st.booleans()):
        document["host_types"] = {"vm": {"cores": draw(st.sampled_from([0.5, 4])), "memory": "4 GB"}}
    return document


JUNK = st.sampled_from(
    [None, -1, 0, "", "nonsense", [], {}, [1], {"a": 1}, True, 1e400, "5 parsecs", "source0", "step0", "no"]
)


def broken(document: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """`document` with one thing deleted, renamed or replaced."""
    changed = copy.deepcopy(document)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(changed)
    node, key = data.draw(st.sampled_from(range(len(places))).map(places.__getitem__))
    match data.draw(st.sampled_from(["delete", "rename", "replace"])):
        case "delete":
            del node[key]
        case "rename" if isinstance(node, dict):
            node[f"{key}x"] = node.pop(key)
        case _:
            node[key] = data.draw(JUNK)
    return changed


def checked(path: Path, document: dict[str, Any]) -> Result:
    path.write_text(json.dumps(document, indent=1).replace("Infinity", ".inf"))
    return invoke("check", path)


def verdict(path: Path) -> str:
    """What compiling, or building the simulation, says: empty where nothing."""
    try:
        document = load_document(path)
        graph, types = document.graph, tuple(document.host_types.values())
        if simulated_only(graph) is None:
            plan_queries(lay_out(graph))
        if types:
            from elastream.loads import constant

            loads = {source.name: constant("1/s", "1s") for source in graph.sources}
            make_plant(lay_out(graph, chained=simulated_only(graph) is None), host_types=types, loads=loads)
    except ElastreamError as error:
        return str(error)
    return ""


def one_sentence(path: Path, result: Result) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), (path.read_text(), result.exception)
    assert result.exit_code in (0, 2)
    if result.exit_code == 2:
        (told,) = [line for line in result.stderr.splitlines() if line.strip()]
        assert re.match(rf"elastream: {re.escape(str(path))}:\d+: ", told), told


IN_ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)


@settings(IN_ONE_FOLDER, max_examples=examples(100))
@given(documents())
def test_check_agrees_with_compiling_and_simulating(tmp_path: Path, document: dict[str, Any]) -> None:
    path = tmp_path / "any.yaml"
    result = checked(path, document)
    one_sentence(path, result)
    says = verdict(path)
    if says and "more than" not in says:
        assert result.exit_code == 2, (path.read_text(), says)
    elif result.exit_code == 2 and not says:
        assert "no number of hosts can keep that" in result.stderr, (path.read_text(), result.stderr)


@settings(IN_ONE_FOLDER, max_examples=examples(150))
@given(documents(), st.data())
def test_a_document_with_a_mistake_is_one_sentence(tmp_path: Path, document: dict[str, Any], data: st.DataObject) -> None:
    path = tmp_path / "any.yaml"
    one_sentence(path, checked(path, broken(document, data)))
