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

Paths and `file.py:name` are relative to the document; a policy, cloud, source or sink may be a class of the user's,
`module:Class` or `file.py:Class`. A file of guards stands beside it, `guards: guards.yaml`. Every error names file,
line and field in one sentence.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elastream.core.hosts import HostType
from elastream.dataflow.builder import Dataflow, Tap
from elastream.dataflow.endpoints import (
    Collected,
    DomainSignal,
    Files,
    KafkaTopic,
    Nothing,
    ParquetSink,
    Records,
    Simulated,
    SinkSpec,
    SourceSpec,
    TextFiles,
    Trace,
    domain_signal,
)
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable, selection_of
from elastream.dataflow.operators import Alternate, Delivery, Form, Kind, Operator
from elastream.dataflow.windows import Pairs, Timeout
from elastream.documents.dataflow_keys import (
    FORMS,
    GROUPINGS,
    KEYED_FORMS,
    SETTINGS,
    AlternateKeys,
    DiagnosticKeys,
    DocumentKeys,
    OperatorKeys,
    SinkKeys,
    TimeoutKeys,
    document_keys,
)
from elastream.documents.key_table_files import load_key_table
from elastream.documents.located import Loc, Located, read_yaml
from elastream.documents.registry import CLOUD, DEFAULT_POLICY, POLICY, SINK, SOURCE, Registry, made
from elastream.documents.schema import chosen, declared_types
from elastream.documents.user_code import ProgramError, References, near
from elastream.errors import DataflowError, ElastreamError
from elastream.loads import pattern_from
from elastream.settings import PathOf
from elastream.units import duration


@dataclass(frozen=True)
class Setting:
    """A policy or a cloud, a source or a sink as the document names it; `build` makes it, and imports it only then."""

    name: str
    parameters: Mapping[str, Any]
    _registry: Registry
    _place: Loc
    _file: Located = field(repr=False)
    _references: References = field(repr=False)

    def build(self) -> Any:
        """What is named; raises DataflowError with the line for what it is not, does not take or refuses."""

        def refusal(path: tuple[str, ...], sentence: str) -> DataflowError:
            return self._file.error((*self._place, *path), sentence)

        try:
            return made(self._registry, self.name, self.parameters, self._references, refusal)
        except ProgramError as error:
            raise self._file.error(self._place, str(error)) from error


@dataclass(frozen=True)
class Document:
    """A document, checked: the dataflow, and how it is to be run.

    Attributes:
        policy: The default one if the document names none.
        host_types: Host types that are declared in the document, by name.
        settings: Further settings of `RunSettings` that the document has.
    """

    path: Path
    flow: Dataflow
    policy: Setting
    cloud: Setting | None = None
    host_types: Mapping[str, HostType] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    file: Located | None = field(default=None, repr=False)

    @contextmanager
    def placing(self, *replaced: str) -> Iterator[None]:
        """Put file, line and field before the sentence of an error raised inside that is about a part of the document.

        replaced: keys at its top in whose place something else is used.
        """
        try:
            yield
        except ElastreamError as error:
            about = error.at if error.at and error.at[0] not in replaced else ()
            if self.file is None or not (place := self.file.written(about)):
                raise
            raise self.file.error(place, str(error)) from error

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
    keys: DocumentKeys = file.validate(document_keys())
    references = References(file.path.parent)
    host_types = declared_types(file, ("host_types",), keys.host_types)
    flow = _flow(file, keys, references)
    return Document(
        path=file.path,
        flow=flow,
        policy=_named(file, ("policy",), keys.policy or {DEFAULT_POLICY: {}}, POLICY, references),
        cloud=_setting(file, ("cloud",), keys.cloud, CLOUD, references, host_types),
        host_types=host_types,
        settings={
            **_beside(file, keys.settings),
            "tables": tuple(_table(file, name, place, flow.graph) for name, place in keys.tables.items()),
            "scaling": keys.scaling.built(file),
        },
        file=file,
    )


def _beside(file: Located, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings` with paths that are relative to the document's folder."""
    paths = {name for name, value in settings.items() if isinstance(SETTINGS[name].kind, PathOf) and value is not None}
    return {name: file.path.parent / value if name in paths else value for name, value in settings.items()}


def _flow(file: Located, keys: DocumentKeys, references: References) -> Dataflow:
    flow = Dataflow(keys.dataflow)
    for name, operator in keys.operators.items():
        _check_inputs(file, keys, name)
        taps, built = _taps(operator), _operator(file, name, operator, references)
        delivery = Delivery.KEYED if built.kind is Kind.KEYED else None
        for number in range(1, operator.unrolled or 1):  # the rounds before the last, which has the name
            flow.add(_round(built, f"{name}_{number}"), taps, delivery)
            taps = [Tap(f"{name}_{number}", taps[0].delivery, taps[0].durable)]
        flow.add(built, taps, delivery)
    try:
        _ = flow.graph
    except DataflowError as error:
        place = file.written(error.at)
        if len(place) < 2:
            # Some faults are of the whole; others are of the operator that the sentence quotes.
            culprit = next((name for name in keys.operators if repr(name) in str(error).partition(": ")[2]), None)
            place = ("operators", culprit) if culprit else ("operators",)
        raise file.error(place, str(error)) from None
    return flow


def _table(file: Located, operator: str, place: str, graph: Graph) -> KeyTable:
    with file.at(("tables", operator)):
        return load_key_table(file.path.parent / place, selection_of(graph, operator))


def _taps(keys: OperatorKeys) -> list[Tap]:
    """Where records come from: `from` feeds the first port, `join` the second, and each of `zip` one more."""
    edges = [(edge, 0) for edge in keys.from_]
    edges += [(edge, 1) for edge in keys.join or ()]
    edges += [(edge, port) for port, edge in enumerate(keys.zip or (), 1)]
    return [
        Tap(e.operator, Delivery(e.delivery), e.durable, e.choice, 1.0 if e.value is None else e.value, port)
        for e, port in edges
    ]


def _round(operator: Operator, name: str) -> Operator:
    """`operator` as one round of an unrolled loop."""
    alternates = operator.alternates
    if [each.name for each in alternates] == [operator.name]:
        alternates = (replace(alternates[0], name=name),)
    return replace(operator, name=name, alternates=alternates)


def _check_inputs(file: Located, keys: DocumentKeys, name: str) -> None:
    seen: dict[str, tuple[str, int]] = {}
    operator = keys.operators[name]
    ways = {"from": operator.from_, "join": operator.join, "zip": operator.zip}
    for key, position, edge in ((key, *each) for key, edges in ways.items() for each in enumerate(edges or ())):
        place = file.written(("operators", name, key, position))
        if edge.operator not in keys.operators:
            raise file.error(place, f"there is no operator {edge.operator!r}{near(edge.operator, keys.operators)}")
        if keys.operators[edge.operator].kind in ("sink", "signal"):
            raise file.error(place, f"{edge.operator!r} is a {keys.operators[edge.operator].kind}: nothing comes out of it")
        first = seen.setdefault(edge.operator, (key, position))
        if first[0] != key:
            way = "give one of them an operator of its own, such as one with 'select' and other names for its columns"
            raise file.error(place, f"{edge.operator!r} is on both sides of {name!r}: {way}")
        if first[1] != position:
            raise file.error(place, f"{edge.operator!r} is listed twice")


def _operator(file: Located, name: str, keys: OperatorKeys, references: References) -> Operator:
    place: Loc = ("operators", name)
    kind, returns = Kind.TRANSFORM, keys.returns or next((a.returns for a in (keys.alternates or {}).values()), "")
    reads = writes = None
    if keys.source is not None:
        kind, reads = Kind.SOURCE, _source(file, place, keys, references)
        returns = reads.schema if reads is not None else ""
    elif keys.sink is not None:
        kind, writes = Kind.SINK, _sink(file, place, keys.sink, references)
    elif keys.signal is not None:
        kind, writes = Kind.SINK, _signal(file, place, name, keys.signal, references)
    elif keys.grouping is not None or keys.zip is not None:
        kind = Kind.KEYED
    with file.at((*place, "window")):
        window = None if keys.window is None else keys.window.built()
    return Operator(
        name=name,
        kind=kind,
        alternates=_alternates(file, place, name, keys, references),
        returns=returns,
        key=tuple(keys.key_by or keys.group_by or keys.on or ()),
        max_duration=keys.max_duration,
        cores=keys.cores if keys.cores is not None else float(kind is not Kind.SINK),
        memory=keys.memory,
        image=keys.image,
        waits=keys.waits,
        record_bytes=keys.record_bytes,
        reads=reads,
        writes=writes,
        state=keys.state,
        own_state=keys.own_state or any(each.state for each in (keys.alternates or {}).values()),
        selects=tuple(keys.select_by or ()),
        window=window,
        timeout=_timeout(file, place, keys.timeout, references),
        sequential=keys.sequential,
        on_error=keys.on_error,
    )


def _alternates(file: Located, place: Loc, name: str, keys: OperatorKeys, references: References) -> tuple[Alternate, ...]:
    grouped = GROUPINGS.get(keys.grouping or "", Form.NONE)
    if keys.alternates is not None:
        found = []
        for label, each in keys.alternates.items():
            function, form = _function(file, (*place, "alternates", label), each, references, grouped)
            found.append(
                Alternate(label, function, form, each.value, each.cost, each.selectivity, each.state, each.returns)
            )
        return tuple(found)
    if keys.kind in ("source", "sink", "signal"):
        return ()
    function, form = _function(file, place, keys, references, grouped)
    if keys.kind == "zip":
        form = Form.ZIP
    if keys.kind == "join":
        function, form = Pairs(tuple(keys.on or ())), Form.JOIN
    return (Alternate(name, function, form, cost=keys.cost, selectivity=keys.selectivity),)


def _function(
    file: Located, place: Loc, keys: OperatorKeys | AlternateKeys, references: References, grouped: Form
) -> tuple[Callable[..., Any] | Mapping[str, str] | None, Form]:
    """What is called, and how; grouped: the form of a function that is named by `apply`."""
    forms = {**FORMS, **KEYED_FORMS, "apply": grouped}
    key = chosen(keys, forms)
    if key is None:
        return None, Form.NONE
    written = getattr(keys, key)
    if isinstance(written, Mapping):
        return dict(written), forms[key]
    with file.at((*place, key)):
        return references.find(written), forms[key]


def _source(file: Located, place: Loc, keys: OperatorKeys, references: References) -> SourceSpec | None:
    assert keys.source is not None
    load = None
    if keys.load is not None:
        if keys.source.own is not None or keys.source.kafka is not None:
            allowed = "text_files, files or records, or 'simulated'"
            raise file.error((*place, "load"), f"a load needs records to draw from: {allowed}")
        with file.at((*place, "load")):
            load = pattern_from(_plain(keys.load), file.path.parent)
    source, folder = keys.source, file.path.parent
    if (own := _setting(file, (*place, "source"), source.own, SOURCE, references)) is not None:
        reader: SourceSpec = own.build()
        return reader
    if source.text_files is not None:
        return TextFiles(_relative(source.text_files, folder), load)
    if source.files is not None:
        return Files(_relative(source.files, folder), str(source.schema_), source.format, load)
    if source.records is not None:
        return Records(tuple(_plain(row) for row in source.records), str(source.schema_), load)
    if source.kafka is not None:
        return KafkaTopic(source.kafka, source.servers, source.options, group=source.group)
    return None if load is None else Simulated(load)


def _signal(file: Located, place: Loc, name: str, keys: DiagnosticKeys, references: References) -> DomainSignal:
    with file.at((*place, "signal")):
        trace = None
        if isinstance(keys.trace, str):
            trace = references.find(keys.trace)
        elif keys.trace is not None:
            taken = sorted(((duration(time), value) for time, value in keys.trace.items()), key=lambda each: each[0])
            trace = Trace(tuple(time for time, _ in taken), tuple(value for _, value in taken))
        return domain_signal(keys.name or name, keys.aggregate, stale=keys.stale, trace=trace)


def _timeout(file: Located, place: Loc, keys: TimeoutKeys | None, references: References) -> Timeout | None:
    if keys is None:
        return None
    with file.at((*place, "timeout")):
        function = None if keys.emits is None else references.find(keys.emits)
        return Timeout(keys.seconds, keys.by, keys.late, function)


def _sink(file: Located, place: Loc, keys: SinkKeys, references: References) -> SinkSpec | None:
    if (own := _setting(file, (*place, "sink"), keys.own, SINK, references)) is not None:
        writer: SinkSpec = own.build()
        return writer
    if keys.parquet is not None:
        return ParquetSink() if keys.parquet is True else ParquetSink(_relative(keys.parquet, file.path.parent))
    if keys.nothing is not None:
        return Nothing()
    if keys.collect is not None:
        return Collected(keys.collect)
    if keys.kafka is not None:
        return KafkaTopic(keys.kafka, keys.servers, keys.options)
    return None


def _setting(
    file: Located,
    place: Loc,
    written: Mapping[str, Mapping[str, Any]] | None,
    registry: Registry,
    references: References,
    host_types: Mapping[str, HostType] | None = None,
) -> Setting | None:
    return None if written is None else _named(file, place, written, registry, references, host_types)


def _named(
    file: Located,
    place: Loc,
    written: Mapping[str, Mapping[str, Any]],
    registry: Registry,
    references: References,
    host_types: Mapping[str, HostType] | None = None,
) -> Setting:
    ((name, parameters),) = written.items()
    place = file.written((*place, name)) or place
    if name not in registry.known and ":" not in name:
        raise file.error(place, f"there is no {registry.what} {name!r}{near(name, registry.known)}")
    given, types = {parameter: _plain(value) for parameter, value in parameters.items()}, host_types or {}
    if isinstance(given.get("host_type"), Mapping):
        raise file.error((*place, "host_type"), "a host type is named here: declare it under 'host_types', by its name")
    if (named := str(given.get("host_type"))) in types:
        given["host_type"] = types[named]
    if isinstance(several := given.get("host_types"), list) and types:
        given["host_types"] = tuple(types.get(str(each), each) for each in several)
    return Setting(name, given, registry, place, file, references)


def _relative(path: str, folder: Path) -> str:
    """`path` seen from the document; addresses (`s3a://...`) are taken as they are."""
    return path if "://" in path else str(folder / path)


def _plain(value: Any) -> Any:
    """`value` without what the YAML reader wraps around it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), value)
