"""A dataflow written as YAML: the same graph as the Python API builds, with policy, cloud and target latency beside it.

    dataflow: word_count
    target_latency: 2s
    operators:
      lines:
        source: {text_files: books/}
        load: {ramp: {from: 5/s, to: 550/s, over: 60s}, then_back: true}
      words: {from: lines, flat_map: "words.py:split", returns: word string, max_duration: 50ms, cores: 0.25}
      count: {from: words, key_by: word, aggregate: {count: count(*)}}
      out: {from: count, sink: {parquet: out/}}
    policy: {threshold: {scale_out: 0.7}}
    cloud: {local: {host_type: small, max_hosts: 6}}

Paths and `file.py:function` are relative to the document. Every error names file, line and field in one sentence.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from elastream.documents.located import Loc, Located, read_yaml
from elastream.documents.schema import (
    FORMS,
    KEYED_FORMS,
    AlternateKeys,
    DocumentKeys,
    HostTypeKeys,
    OperatorKeys,
    SinkKeys,
    chosen,
)
from elastream.documents.user_code import Functions, near
from elastream.model.cloud import HostType
from elastream.model.endpoints import Collected, Files, KafkaTopic, ParquetSink, Records, SinkSpec, SourceSpec, TextFiles
from elastream.model.errors import DataflowError, ElastreamError
from elastream.model.flow import Dataflow, Tap
from elastream.model.graph import Alternate, Delivery, Form, Graph, Kind, Operator
from elastream.model.units import duration
from elastream.workload import pattern_from

__all__ = ["CLOUDS", "POLICIES", "Document", "Setting", "imported", "load_document"]

POLICIES: Mapping[str, str] = {
    "threshold": "elastream.planning.policies.threshold:Threshold",
    "static": "elastream.planning.policies.static:Static",
    "queue_threshold": "elastream.planning.policies.queue_threshold:QueueThreshold",
    "btu": "elastream.planning.policies.btu:Btu",
    "e2df": "elastream.planning.policies.e2df:E2df",
    "otd": "elastream.planning.policies.otd:Otd",
    "elastic_allocator": "elastream.planning.policies.elastic_allocator:ElasticAllocator",
    "even": "elastream.planning.policies.baselines:Even",
    "random": "elastream.planning.policies.baselines:Random",
}
"""Policies by the name that a document calls them, as `module:class`; imported when used."""

CLOUDS: Mapping[str, str] = {"local": "elastream.clouds.local.local:Local", "pool": "elastream.clouds.pool:Pool"}
"""Providers of hosts, likewise."""

PARTS: Mapping[str, str] = {
    "network": "elastream.clouds.local.network:Link",
    "weights": "elastream.planning.policies.btu:DownscalingWeights",
}
"""Parameters that are a mapping in a document and an object of their own in Python."""


@dataclass(frozen=True)
class Setting:
    """A policy or a provider of hosts as the document names it; `build` makes it, and imports it only then."""

    name: str
    parameters: Mapping[str, Any]
    _target: str
    _place: Loc
    _file: Located = field(repr=False)

    def build(self) -> Any:
        """The policy or provider; raises DataflowError with the line for a parameter it does not take or refuses."""
        return _build(self._target, self.parameters, self._place, self._file)


def imported(target: str) -> Callable[..., Any]:
    """What `"module:name"`, as in `POLICIES`, names."""
    module, _, attribute = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def _build(target: str, parameters: Mapping[str, Any], place: Loc, file: Located) -> Any:
    factory = imported(target)
    hints = get_type_hints(factory)
    known = inspect.signature(factory).parameters
    arguments = {}
    for name, value in parameters.items():
        here = (*place, name)
        if name not in known:
            raise file.error(here, f"there is no such parameter{near(name, known)}")
        if name in PARTS and isinstance(value, Mapping):
            arguments[name] = _build(PARTS[name], value, here, file)
        else:
            arguments[name] = _fitting(value, hints.get(name), here, file)
    try:
        return factory(**arguments)
    except (ElastreamError, TypeError, ValueError) as error:
        # The parameter that the sentence names or quotes, if any, has the better line.
        named = next((name for name, value in parameters.items() if name in str(error) or repr(value) in str(error)), None)
        raise file.error((*place, named) if named else place, str(error)) from None


def _fitting(value: Any, hint: Any, place: Loc, file: Located) -> Any:
    """`value` as a parameter annotated `hint` takes it: numbers may be written as durations."""
    wanted = set(get_args(hint)) or {hint}
    if str in wanted or not wanted & {int, float}:
        return value
    if isinstance(value, str) and float in wanted:
        with _located(file, place):
            return duration(value)
    if isinstance(value, bool) or not isinstance(value, int | (float if float in wanted else int)):
        raise file.error(place, f"{value!r} is not a {'number' if float in wanted else 'whole number'}")
    return value


@dataclass(frozen=True)
class Document:
    """A document, checked: the dataflow, and how it wants to be run where it says so (else None).

    target_latency: seconds. host_types: those declared in the document, by name.
    """

    path: Path
    flow: Dataflow
    policy: Setting | None = None
    cloud: Setting | None = None
    target_latency: float | None = None
    host_types: Mapping[str, HostType] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The dataflow's graph."""
        return self.flow.graph


def load_document(path: Path | str) -> Document:
    """The document in the YAML file `path`.

    Raises InputError where the file cannot be read, DataflowError - with file, line and field - for what is wrong in it,
    ProgramError where a file of functions that it names fails by itself.
    """
    file = read_yaml(Path(path))
    keys: DocumentKeys = file.validate(DocumentKeys)
    host_types = {name: _host_type(file, name, each) for name, each in keys.host_types.items()}
    return Document(
        path=file.path,
        flow=_flow(file, keys),
        policy=_setting(file, "policy", keys.policy, POLICIES, {}),
        cloud=_setting(file, "cloud", keys.cloud, CLOUDS, host_types),
        target_latency=keys.target_latency,
        host_types=host_types,
    )


def _flow(file: Located, keys: DocumentKeys) -> Dataflow:
    flow, functions = Dataflow(keys.dataflow), Functions(file.path.parent)
    for name, operator in keys.operators.items():
        _check_inputs(file, keys, name)
        taps = [Tap(e.operator, Delivery(e.delivery), e.durable, e.choice) for e in operator.from_]
        built = _operator(file, name, operator, functions)
        flow.add(built, taps, Delivery.KEYED if built.kind is Kind.KEYED else None)
    try:
        _ = flow.graph
    except DataflowError as error:
        # The graph's sentence quotes the operator at fault, if it is one's; a cycle or a missing sink is everybody's.
        culprit = next((name for name in keys.operators if repr(name) in str(error).partition(": ")[2]), None)
        raise file.error(("operators", culprit) if culprit else ("operators",), str(error)) from None
    return flow


def _check_inputs(file: Located, keys: DocumentKeys, name: str) -> None:
    seen: set[str] = set()
    for position, edge in enumerate(keys.operators[name].from_):
        place = file.written(("operators", name, "from", position))
        if edge.operator not in keys.operators:
            raise file.error(place, f"there is no operator {edge.operator!r}{near(edge.operator, keys.operators)}")
        if keys.operators[edge.operator].sink is not None:
            raise file.error(place, f"{edge.operator!r} is a sink: nothing comes out of it")
        if edge.operator in seen:
            raise file.error(place, f"{edge.operator!r} is listed twice")
        seen.add(edge.operator)


def _operator(file: Located, name: str, keys: OperatorKeys, functions: Functions) -> Operator:
    place: Loc = ("operators", name)
    kind, returns = Kind.TRANSFORM, keys.returns
    endpoint: SourceSpec | SinkSpec | str | None = None
    if keys.source is not None:
        kind, endpoint = Kind.SOURCE, (reads := _source(file, place, keys))
        returns = reads.schema if reads is not None else ""
    elif keys.sink is not None:
        kind, endpoint = Kind.SINK, _sink(keys.sink, file.path.parent)
    elif keys.key_by is not None:
        kind, endpoint = Kind.KEYED, keys.state
    return Operator(
        name=name,
        kind=kind,
        alternates=_alternates(file, place, name, keys, functions),
        returns=returns,
        key=tuple(keys.key_by or ()),
        max_duration=keys.max_duration,
        cores=keys.cores if keys.cores is not None else float(kind is not Kind.SINK),
        memory=keys.memory,
        image=keys.image,
        waits=keys.waits,
        record_bytes=keys.record_bytes,
        endpoint=endpoint,
    )


def _alternates(file: Located, place: Loc, name: str, keys: OperatorKeys, functions: Functions) -> tuple[Alternate, ...]:
    if keys.alternates is not None:
        found = []
        for label, each in keys.alternates.items():
            function, form = _function(file, (*place, "alternates", label), each, functions)
            found.append(Alternate(label, function, form, each.value, each.cost, each.selectivity))
        return tuple(found)
    if keys.source is not None or keys.sink is not None:
        return ()
    function, form = _function(file, place, keys, functions)
    return (Alternate(name, function, form, cost=keys.cost, selectivity=keys.selectivity),)


def _function(
    file: Located, place: Loc, keys: OperatorKeys | AlternateKeys, functions: Functions
) -> tuple[Callable[..., Any] | Mapping[str, str] | None, Form]:
    forms = {**FORMS, **KEYED_FORMS} if isinstance(keys, OperatorKeys) else FORMS
    key = chosen(keys, forms)
    if key is None:
        return None, Form.NONE
    written = getattr(keys, key)
    if isinstance(written, Mapping):
        return dict(written), forms[key]
    with _located(file, (*place, key)):
        return functions.find(written), forms[key]


@contextmanager
def _located(file: Located, place: Loc) -> Iterator[None]:
    """Put file, line and field before the sentence of an error raised inside."""
    try:
        yield
    except ElastreamError as error:
        raise file.error(place, str(error)) from error


def _source(file: Located, place: Loc, keys: OperatorKeys) -> SourceSpec | None:
    assert keys.source is not None
    load = None
    if keys.load is not None:
        if keys.source.simulated or keys.source.kafka is not None:
            raise file.error((*place, "load"), "a load needs records to draw from: text_files, files or records")
        with _located(file, (*place, "load")):
            load = pattern_from(_plain(keys.load), file.path.parent)
    source, folder = keys.source, file.path.parent
    if source.text_files is not None:
        return TextFiles(_relative(source.text_files, folder), load)
    if source.files is not None:
        return Files(_relative(source.files, folder), str(source.schema_), source.format, load)
    if source.records is not None:
        return Records(tuple(_plain(row) for row in source.records), str(source.schema_), load)
    if source.kafka is not None:
        return KafkaTopic(source.kafka, source.servers, source.options)
    return None


def _sink(keys: SinkKeys, folder: Path) -> SinkSpec | None:
    if keys.parquet is not None:
        return ParquetSink(_relative(keys.parquet, folder))
    if keys.collect is not None:
        return Collected(keys.collect)
    if keys.kafka is not None:
        return KafkaTopic(keys.kafka, keys.servers, keys.options)
    return None


def _setting(
    file: Located,
    key: str,
    written: Mapping[str, Mapping[str, Any]] | None,
    registry: Mapping[str, str],
    host_types: Mapping[str, HostType],
) -> Setting | None:
    if written is None:
        return None
    ((name, parameters),) = written.items()
    place = file.written((key, name)) or (key,)
    if name not in registry:
        raise file.error(place, f"there is no {key} {name!r}{near(name, registry)}")
    given = {parameter: _plain(value) for parameter, value in parameters.items()}
    if (named := str(given.get("host_type"))) in host_types:
        given["host_type"] = host_types[named]
    if isinstance(several := given.get("host_types"), list):
        given["host_types"] = tuple(host_types.get(str(each), each) for each in several)
    return Setting(name, given, registry[name], place, file)


def _host_type(file: Located, name: str, keys: HostTypeKeys) -> HostType:
    with _located(file, ("host_types", name)):
        return keys.built(name)


def _relative(path: str, folder: Path) -> str:
    """`path` seen from the document; addresses (`s3a://...`) are taken as they are."""
    return path if "://" in path else str(folder / path)


def _plain(value: Any) -> Any:
    """`value` without what the YAML reader wraps around it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
