"""Reads the dataflow and run settings that a program or document declares, without running it.

`elastream check` prints them, `elastream simulate` simulates them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastream.core.scaling import NO_RULES

if TYPE_CHECKING:
    from elastream.core.hosts import HostType
    from elastream.core.plant import Policy
    from elastream.core.scaling import ScalingRules
    from elastream.dataflow.graph import Graph
    from elastream.dataflow.key_table import KeyTable


@dataclass(frozen=True)
class Declared:
    """A validated dataflow with its run settings. cloud, target_latency (seconds): None if not declared.

    host_types: those that a document declares. cloud: a provider of hosts, such as `elastream.Local`. placing: puts file,
    line and field before errors raised inside; its arguments are keys in whose place something else is used. guards: file.
    consistency: name of the mode. tables: key tables that it begins with. replicas: copies of each state partition.
    state_partitions: of each keyed operator; None: by default. scaling: rules for the number of hosts.
    """

    graph: "Graph"
    policy: "Policy"
    cloud: Any = None
    target_latency: float | None = None
    host_types: "tuple[HostType, ...]" = ()
    placing: Callable[..., AbstractContextManager[None]] = lambda *replaced: nullcontext()
    guards: Path | None = None
    consistency: str = "batch"
    tables: "Sequence[KeyTable]" = ()
    replicas: int = 0
    state_partitions: int | None = None
    scaling: "ScalingRules" = NO_RULES

    @property
    def types(self) -> "tuple[HostType, ...]":
        """Host types to lease: those declared, else the cloud's own."""
        return self.host_types or (() if self.cloud is None else self.cloud.types)

    @property
    def fused(self) -> bool:
        """Whether it is simulated as it runs on Spark where nothing else is asked for: operators of one stage together."""
        return self.cloud is not None or not self.host_types


def declared(file: Path) -> Declared:
    """Read `file`; a program is executed up to its `run(...)`. Raises ElastreamError, as `execute` does."""
    from elastream.api.options import RunOptions
    from elastream.cli.program import execute
    from elastream.cli.run import without_run
    from elastream.dataflow.builder import Dataflow
    from elastream.errors import InputError
    from elastream.policies.threshold import Threshold

    if file.suffix in (".yaml", ".yml") and file.is_file():
        return _of_document(file)
    try:
        names = execute(file, RunOptions(before=_stop_before)) or {}
    except Stopped as stopped:
        return stopped.declared
    except SystemExit as ended:
        raise InputError(f"{file} ended by itself (status {ended.code or 0}) before it called run(...)") from None
    flows = [value for value in names.values() if isinstance(value, Dataflow)]
    if len(flows) != 1:
        without_run(file, names)
    return Declared(flows[0].graph, Threshold())


class Stopped(BaseException):
    """Ends a program at its `run(...)`; holds its arguments. A BaseException, so that programs do not catch it."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared


def _stop_before(
    graph: "Graph",
    policy: "Policy",
    cloud: Any = None,
    target_latency: float | None = None,
    guards: Any = None,
    consistency: str = "batch",
    tables: "Sequence[KeyTable]" = (),
    replicas: int = 0,
    state_partitions: int | None = None,
    scaling: "ScalingRules" = NO_RULES,
) -> None:
    file = None if guards is None else Path(guards)
    raise Stopped(
        Declared(
            graph,
            policy,
            cloud,
            target_latency,
            guards=file,
            consistency=consistency,
            tables=tables,
            replicas=replicas,
            state_partitions=state_partitions,
            scaling=scaling,
        )
    )


def _of_document(file: Path) -> Declared:
    from elastream.documents.dataflow import load_document

    document = load_document(file)
    policy, cloud = document.policy.build(), None if document.cloud is None else document.cloud.build()
    types = tuple(document.host_types.values())
    return Declared(
        document.graph,
        policy,
        cloud,
        document.target_latency,
        types,
        document.placing,
        document.guards,
        document.consistency or "batch",
        document.tables,
        document.replicas,
        document.state_partitions,
        document.scaling,
    )
