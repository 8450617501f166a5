"""Code updates of a live or a failed run."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from elastream.dataflow.compiling import plan_queries
from elastream.dataflow.functions import Message
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import selections_of
from elastream.dataflow.stages import lay_out
from elastream.errors import InputError
from elastream.guards.document import parse_guards
from elastream.recording.code_log import CodeLog, CodeVersion
from elastream.recording.directory import RunDirectory
from elastream.recording.guard_log import GuardLog
from elastream.recording.key_table_log import KeyTableLog
from elastream.recording.recorder import Recording, check_live
from elastream.spark.queries.updating import ask_message, ask_update


def update_run(directory: RunDirectory, graph: Graph, who: str) -> tuple[CodeVersion, tuple[str, ...]]:
    """Give a run the code of `graph`; return its version and the changes in words.

    Raises:
        ElastreamError: Nothing was written.
    """
    recording, failed = _recording(directory, "updates of code")
    if graph.name != recording.header.flow:
        raise InputError(f"{directory.root} is a run of dataflow {recording.header.flow!r}, not of {graph.name!r}")
    version = ask_update(graph, directory, partial(_check, directory), who, repairs=failed)
    before = CodeLog(directory).versions[version.version - 1].alternates
    return version, tuple(_in_words(name, before[name], version.alternates[name]) for name in version.changed)


def send_message(directory: RunDirectory, operator: str, message: Message, who: str) -> CodeVersion:
    """Send a value of JSON to an operator of a run; return the code version that contains it.

    Raises:
        ElastreamError: Nothing was written.
    """
    _, failed = _recording(directory, "messages")
    return ask_message(directory, operator, message, who, repairs=failed)


def _recording(directory: RunDirectory, what: str) -> tuple[Recording, bool]:
    """Return the outline of a run, and True if it failed. Raises InputError if it takes no `what`."""
    recording = Recording.outline(directory.root)
    failed = recording.ending is not None and recording.ending.status == "failed"
    if not failed:
        check_live(directory.root, recording, what)
    return recording, failed


def _check(directory: RunDirectory, graph: Graph) -> None:
    plan_queries(lay_out(graph))
    if guards := GuardLog(directory.guards).versions:
        parse_guards(guards[-1].text, Path(guards[-1].file), graph)
    tables = KeyTableLog(directory, selections_of(graph))
    for operator, version in tables.newest().items():
        names = {each.name for each in graph.operator(operator).alternates}
        if unknown := sorted(set(tables.find(operator, version).rows.values()) - names):
            raise InputError(
                f"key table {version} of operator {operator!r} names the alternate {unknown[0]!r}: set another table first"
            )


def _in_words(operator: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    kinds = {
        "new": [name for name in now if name not in before],
        "changed": [name for name in now if name in before and now[name] != before[name]],
        "removed": [name for name in before if name not in now],
    }
    texts = [f"{', '.join(names)} {kind}" for kind, names in kinds.items() if names]
    return f"{operator}: {', '.join(texts) or 'another order'}"
