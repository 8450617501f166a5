"""Updates of a running run: new code of its operators, in numbered versions."""

import json
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyspark import cloudpickle

from elastream.dataflow.code import Code, code_of, fixed_facts, with_code
from elastream.dataflow.functions import Message, Receiver, misfit, receiver_of, with_message
from elastream.dataflow.graph import Graph
from elastream.dataflow.identity import differences
from elastream.dataflow.operators import Alternate
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import ElastreamError, InputError, in_one_line
from elastream.recording.code_log import CodeLog, CodeVersion
from elastream.recording.directory import RunDirectory
from elastream.recording.mirror import copy_now
from elastream.spark.dataflow.shipping import mark_of, pickled
from elastream.spark.worker.code import forget_code, publish_code
from elastream.spark.worker.composition import MAX_CODE_VERSIONS, CompositionCodec


# An update is a switch: each batch names its version of the code in its offsets.
#
# | state | event | next | a kill now: `--resume` goes on with |
# | --- | --- | --- | --- |
# | running v | `elastream update` is refused | running v | v: nothing was written |
# | running v | it writes the file of v+1, then its line | asked | v; a file without a line does not count |
# | asked | the loop proposes it; it cannot be loaded | asked | v; the decision record says why |
# | asked | the loop proposes it; the workers' copy is written | published | v; proposed and published again |
# | asked | v+2 is asked | asked | v; v+2 is proposed alone |
# | published | a composition with v+1 is requested | wanted | v+1 |
# | published | it cannot be requested | asked | v, under a later composition |
# | wanted | a batch is planned under it | in flight | v+1; batches that were planned before replay with v |
# | in flight | its query fails, or an executor is lost | in flight | v+1; the batch replays with v+1 |
# | in flight | the batch is committed, not in all queries | in flight | v+1 |
# | in flight | it is committed in all queries | effective | v+1 |
# | effective | the workers' copies before v+1 are removed | running v+1 | v+1; no batch needs an older one |
#
# `code.jsonl` keeps all versions, as a resumed run begins with version 0. A version that was given to a failed run replaces
# functions of equal names in earlier ones: the failed batch replays with one of these.
class RunningCode:
    """Code of the run in `directory`, whose queries began with that of `graph`."""

    def __init__(self, graph: Graph, directory: RunDirectory) -> None:
        self._directory, self._log = directory, CodeLog(directory)
        self.codec = CompositionCodec(graph, updates=True)
        self._layouts = {0: lay_out(graph)}
        self._learned = self._forgotten = 0
        if self.codec.version is not None:
            self._learn()
            self._publish_repairs()

    def layout(self, version: int) -> Layout:
        if version not in self._layouts:
            graph = self._layouts[0].graph
            self._layouts[version] = lay_out(with_code(graph, loaded(self._log, version)))
        return self._layouts[version]

    def bring(self, version: int) -> str:
        """Publish a version for the workers; return why that is impossible, or ""."""
        try:
            self._learn()
            self.layout(version)
            digits = self.codec.digits_of(version)
        except (ElastreamError, KeyError) as error:
            return in_one_line(error)
        # Copy now, so that a version in use is never reassigned to other code.
        copy_now(self._directory, self._log.file(version), self._directory.code_log)
        publish_code(self._directory.code_in_use, version, self._log.content(version), digits)
        return ""

    def changed(self, before: int, after: int) -> Mapping[str, frozenset[str]]:
        versions = self._log.versions
        if not versions:
            return {}
        was, now = versions[before].alternates, versions[after].alternates
        return {
            name: frozenset(a for a in {**was.get(name, {}), **each} if was.get(name, {}).get(a) != each.get(a))
            for name, each in now.items()
        }

    def forget(self, before: int) -> None:
        if before > self._forgotten:
            forget_code(self._directory.code_in_use, before)
            self._forgotten = before

    def _learn(self) -> None:
        code: dict[str, int] = {}
        for each in self._log.versions:
            code |= dict.fromkeys(each.changed, each.version)
            if each.version > self._learned:
                self.codec.learn(each.version, dict(code), {name: [*marks] for name, marks in each.alternates.items()})
                self._learned = each.version

    def _publish_repairs(self) -> None:
        last = max((each.version for each in self._log.versions if each.repairs), default=0)
        for version in range(1, last):
            content = pickled(_repaired(self._log, version), f"version {version} of the code")
            publish_code(self._directory.code_in_use, version, content, self.codec.digits_of(version))


def _repaired(log: CodeLog, version: int) -> Code:
    code = dict(loaded(log, version))
    for repair in [each.version for each in log.versions[version + 1 :] if each.repairs]:
        for name, later in loaded(log, repair).items():
            by_name = {each.name: each for each in later}
            code[name] = tuple(by_name.get(each.name, each) for each in code[name])
    return code


def loaded(log: CodeLog, version: int) -> Code:
    """Return the code of a version. Raises InputError if it cannot be loaded."""
    content = log.content(version)
    try:
        code: Code = cloudpickle.loads(content)
    except Exception as error:  # user modules may raise anything
        raise InputError(f"version {version} of the code cannot be loaded: {in_one_line(error)}") from error
    return code


def begin_code(graph: Graph, directory: RunDirectory) -> None:
    """Write the code with which a run begins, unless it was updated since."""
    if code := code_of(graph):
        first = CodeVersion(0, "", _marks(code), fixed=fixed_facts(graph, _mark), python=_python())
        CodeLog(directory).begin(pickled(code, f"dataflow {graph.name!r}"), first)


def with_first_code(graph: Graph, directory: RunDirectory) -> Graph:
    """Return `graph` with the code that a run began with, if it was updated since."""
    log = CodeLog(directory)
    if len(log.versions) < 2:
        return graph
    return with_code(graph, _repaired(log, 0))


def with_newest_code(graph: Graph, directory: RunDirectory) -> Graph:
    log = CodeLog(directory)
    return with_code(graph, loaded(log, len(log.versions) - 1)) if len(log.versions) > 1 else graph


def ask_update(
    graph: Graph, directory: RunDirectory, check: Callable[[Graph], object], who: str, *, repairs: bool = False
) -> CodeVersion:
    """Append the code of `graph` as the next version of a run; `repairs` if it failed.

    Raises:
        ElastreamError: It changes nothing, or more than code, or `check` refuses it; nothing was written.
    """
    log, run = _log_with_code(directory), directory.root
    newest, first = log.versions[-1], log.versions[0]
    if different := differences(first.fixed, fixed_facts(graph, _mark)):
        raise InputError(f"{run} can be given other alternates with Python functions, and nothing else: {different}")
    _check_python(directory, first)
    code = _with_messages(code_of(graph), log)
    marks = _marks(code)
    changed = tuple(name for name, each in marks.items() if [*each.items()] != [*newest.alternates[name].items()])
    if not changed:
        raise InputError(f"{run} has this code already: nothing to update")
    check(graph)
    # A version that no batch can carry would keep the run from resuming.
    CompositionCodec(with_code(graph, loaded(log, 0)), updates=True).learn(
        len(log.versions), {}, {name: [*each] for name, each in marks.items()}
    )
    version = CodeVersion(len(log.versions), "", marks, changed, python=_python(), who=who, repairs=repairs)
    return log.append(pickled(code, f"dataflow {graph.name!r}"), version)


def ask_message(
    directory: RunDirectory, operator: str, message: Message, who: str, *, repairs: bool = False
) -> CodeVersion:
    """Append the newest code of a run, with `message` for `operator`, as its next version.

    Raises:
        InputError: The operator does not take it, or has it already; nothing was written.
    """
    log, run = _log_with_code(directory), directory.root
    newest = log.versions[-1]
    _check_python(directory, newest)
    code = loaded(log, newest.version)
    receivers = {name: each for name, alternates in code.items() if (each := _receivers(alternates))}
    if operator not in receivers:
        there = ", ".join(receivers) or "none does"
        raise InputError(f"operator {operator!r} of {run} takes no messages (these do: {there})")
    if why := next(filter(None, (misfit(message, each.message) for each in receivers[operator])), ""):
        raise InputError(f"operator {operator!r} of {run} does not take the message {message!r}: {why}")
    if all(json.dumps(each.sent) == json.dumps((message,)) for each in receivers[operator]):
        raise InputError(f"operator {operator!r} of {run} has this message already")
    number = len(log.versions)
    if number >= MAX_CODE_VERSIONS:
        raise InputError(f"{run} has got {number - 1} messages and updates, as many as a run can: go on with a new one")
    code = {**code, operator: _attach_message(code[operator], message)}
    marks = {**newest.alternates, operator: _marks(code)[operator]}
    version = CodeVersion(number, "", marks, (operator,), python=_python(), who=who, repairs=repairs)
    return log.append(pickled(code, f"the message to {operator!r}"), version)


def _log_with_code(directory: RunDirectory) -> CodeLog:
    log = CodeLog(directory)
    if not log.versions:
        raise InputError(
            f"{directory.root} keeps no code that can be updated: its operators have no Python functions of Elastream's"
        )
    return log


def _check_python(directory: RunDirectory, version: CodeVersion) -> None:
    if version.python != _python():
        raise InputError(
            f"{directory.root} runs on Python {version.python} and this is Python {_python()}: code is not the same there"
        )


def _receivers(alternates: tuple[Alternate, ...]) -> list[Receiver]:
    return [each for a in alternates if (each := receiver_of(a.function)) is not None]


def _attach_message(alternates: tuple[Alternate, ...], message: Message) -> tuple[Alternate, ...]:
    return tuple(replace(each, function=with_message(each.function, message)) for each in alternates)


def _with_messages(code: Code, log: CodeLog) -> Code:
    """Return `code` with the messages that were sent, where they fit."""
    before: Code = {}
    for each in reversed(log.versions):
        with suppress(InputError):  # of a version that cannot be loaded, no batch ran
            before = loaded(log, each.version)
            break
    merged = dict(code)
    for name, alternates in code.items():
        now, then = _receivers(alternates), _receivers(before.get(name, ()))
        sent = next((each.sent for each in then if each.sent), ())
        if sent and now and not any(misfit(sent[0], each.message) for each in now):
            merged[name] = _attach_message(alternates, sent[0])
    return merged


def _marks(code: Code) -> dict[str, dict[str, str]]:
    return {name: {each.name: _mark(each) for each in alternates} for name, alternates in code.items()}


def _mark(value: Any) -> str:
    if not isinstance(value, Alternate):
        return mark_of(value)
    declared = (value.value, value.cost, value.selectivity, value.state, value.returns)
    return mark_of([value.function, value.form.value, declared])


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])
