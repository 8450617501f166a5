"""Executes a user's Python program or YAML document, or reads the dataflow and settings that it declares."""

import runpy
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from elastream.errors import DataflowError, ElastreamError, InputError

if TYPE_CHECKING:
    from elastream.api.result import RunResult
    from elastream.api.run import Command, Launcher
    from elastream.core.hosts import HostType
    from elastream.core.plant import Policy
    from elastream.dataflow.graph import Graph
    from elastream.documents.dataflow import Document
    from elastream.settings import RunSettings

DOCUMENTS = (".yaml", ".yml")


def execute(file: Path, command: "Command") -> None:
    """Execute `file`. `command` carries out its calls of `run(...)`.

    Raises:
        ElastreamError: An error in the user's code or settings, or a program without a call of `run(...)`.
    """
    if file.suffix in DOCUMENTS and file.is_file():
        _run_document(file, command)
        return
    names = _executed(file, command)
    if not command.calls:
        _refuse_without_run(file, names)


@dataclass(frozen=True)
class Declaration:
    """A dataflow and its run settings, declared by a program or document.

    Attributes:
        needs_cloud: True if it cannot run without a cloud; a program runs in its own process.
        placing: Context that adds file, line and field to errors. Its arguments are keys whose values are not used.
    """

    graph: "Graph"
    settings: "RunSettings"
    host_types: "tuple[HostType, ...]" = ()
    needs_cloud: bool = False
    placing: Callable[..., AbstractContextManager[None]] = lambda *replaced: nullcontext()

    @property
    def policy(self) -> "Policy":
        from elastream.api.arguments import check_policy
        from elastream.policies.horizon.policy import Horizon

        return check_policy(self.settings.policy) or Horizon()

    @property
    def types(self) -> "tuple[HostType, ...]":
        return self.host_types or (() if self.settings.cloud is None else self.settings.cloud.types)

    @property
    def fused(self) -> bool:
        """True if a simulation chains the operators of a stage by default, as on Spark."""
        return self.settings.cloud is not None or not self.host_types

    def replaced(self, **settings: Any) -> "Declaration":
        return replace(self, settings=replace(self.settings, **settings))


def declared(file: Path) -> Declaration:
    """Return the declaration in `file`. Executes a program up to its `run(...)`, with the errors of `execute`."""
    from elastream.dataflow.builder import Dataflow
    from elastream.settings import RunSettings

    if file.suffix in DOCUMENTS and file.is_file():
        return _of_document(file)
    declarations, names = list[Declaration](), dict[str, Any]()

    def record(graph: "Graph", settings: "RunSettings") -> "RunResult":
        declarations.append(Declaration(graph, settings))
        raise SystemExit

    try:
        names |= _executed(file, record)
    except SystemExit as ended:
        if not declarations:
            raise InputError(f"{file} ended by itself (status {ended.code or 0}) before it called run(...)") from None
    if declarations:
        return declarations[0]
    flows = [value for value in names.values() if isinstance(value, Dataflow)]
    if len(flows) != 1:
        _refuse_without_run(file, names)
    return Declaration(flows[0].graph, RunSettings())


def _of_document(file: Path) -> Declaration:
    from elastream.documents.dataflow import load_document
    from elastream.settings import RunSettings

    document = load_document(file)
    cloud = None if document.cloud is None else document.cloud.build()
    policy = document.policy.build()
    with document.placing():
        settings = RunSettings(policy=policy, cloud=cloud, **document.settings)
    return Declaration(document.graph, settings, tuple(document.host_types.values()), cloud is None, document.placing)


def _run_document(file: Path, command: "Command") -> None:
    from elastream.api.arguments import check_cloud, check_policy
    from elastream.documents.dataflow import load_document
    from elastream.settings import RunSettings

    document = load_document(file)
    policy = command.settings.get("policy") or document.policy.build()
    cloud = command.settings.get("cloud") or _cloud_of(document)
    with document.placing(*command.settings):
        check_policy(policy)
        check_cloud(cloud)
        command(document.graph, RunSettings(policy=policy, cloud=cloud, **document.settings))


def _cloud_of(document: "Document") -> Any:
    if document.cloud is None:
        raise DataflowError(f"{document.path}: key 'cloud' is missing: a run needs one, such as 'cloud: in-process'")
    return document.cloud.build()


def _executed(file: Path, launcher: "Launcher") -> Mapping[str, Any]:
    from elastream.api.run import launching
    from elastream.documents.user_code import blame, importing_from, placed

    if not file.is_file():
        raise InputError(f"there is no file {file}")
    if file.suffix != ".py":
        raise InputError(f"{file} is neither a Python program (.py) nor a document (.yaml)")
    arguments, sys.argv = sys.argv, [str(file)]
    try:
        with launching(launcher), importing_from(file.parent):
            return runpy.run_path(str(file), run_name="__main__")
    except ElastreamError as error:
        raise placed(error, file.parent) from error
    except Exception as error:
        raise blame(error, file.parent) or error from error
    finally:
        sys.argv = arguments


def _refuse_without_run(file: Path, names: Mapping[str, Any]) -> NoReturn:
    from elastream.dataflow.builder import Dataflow

    flows = {name: value for name, value in names.items() if isinstance(value, Dataflow)}
    if len(flows) == 1:
        ((name, flow),) = flows.items()
        how = f"run({name})"
        raise DataflowError(f"{file} declares the dataflow {flow.name!r} but does not run it: end it with {how}")
    several = f"declares {len(flows)} dataflows ({', '.join(flows)}) but runs none" if flows else "runs no dataflow"
    raise DataflowError(f"{file} {several}: call run(flow) in it")
