"""`elastream run FILE`: runs a program or document with a live view, and writes a report."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from elastream.cli.options import as_some_seconds, named_by
from elastream.model.errors import DataflowError

if TYPE_CHECKING:
    from elastream.model.decision import Decision
    from elastream.model.observation import Observation
    from elastream.recording.observer import Ending, Header

__all__ = ["run"]


LIMITED = "End the run so long after its hosts and queries have started and its load begins, e.g. 3min."

Program = Annotated[Path, typer.Argument(metavar="FILE", help="A Python program that calls run(...), or a YAML document.")]
Input = Annotated[str | None, typer.Option(metavar="PATH", help="Read this file or folder instead of the dataflow's.")]
ObserveOnly = Annotated[bool, typer.Option("--observe-only", help="Plan and record, but apply no action.")]
Record = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a second copy of the recording.")]
Runs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder for the run's folder; default: the file's, or runs."),
]
Limit = Annotated[float | None, typer.Option(parser=as_some_seconds, metavar="TIME", help=LIMITED)]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Live view, or a line every 10 s.")]
Policy = Annotated[
    str | None, typer.Option(metavar="NAME[:key=value,...]", help="Policy to use instead of the file's, or file.py:Class.")
]
Cloud = Annotated[
    str | None, typer.Option(metavar="NAME[:key=value,...]", help="Cloud to use instead of the file's, or file.py:Class.")
]
Guards = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Guards to use instead of the file's: which alternates may run.")
]
Consistency = Annotated[
    str | None,
    typer.Option(
        metavar="MODE", help="What records meet between two queries while alternates change: batch, wave or drain."
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(min=0, metavar="NUMBER", help="Copies of each state partition that other hosts keep up to date."),
]
Report = Annotated[Path | None, typer.Option(metavar="FILE", help="File of the report; default: in the run's folder.")]


def run(
    file: Program,
    input: Input = None,
    policy: Policy = None,
    cloud: Cloud = None,
    observe_only: ObserveOnly = False,
    record: Record = None,
    runs: Runs = None,
    limit: Limit = None,
    live: Live = True,
    report: Report = None,
    guards: Guards = None,
    consistency: Consistency = None,
    replicas: Replicas = None,
) -> None:
    """Run a dataflow with a live view, and write a report."""
    from elastream.api.options import RunOptions
    from elastream.cli.program import execute

    ends = Ends()
    decides = None if policy is None else named_by(policy, "policy", file)
    leases = None if cloud is None else named_by(cloud, "cloud", file)
    options = RunOptions(
        input,
        observe_only,
        runs,
        record,
        limit,
        (ends,),
        None,
        decides,
        leases,
        live,
        report,
        guards,
        consistency,
        replicas,
    )
    if (names := execute(file, options)) is not None:
        without_run(file, names)
    if ends.interrupted(limit):
        raise KeyboardInterrupt


def without_run(file: Path, names: Mapping[str, Any]) -> NoReturn:
    """Raise DataflowError that says what a program lacks that ended without calling `run(...)`."""
    from elastream.model.flow import Dataflow

    flows = {name: value for name, value in names.items() if isinstance(value, Dataflow)}
    if len(flows) == 1:
        ((name, flow),) = flows.items()
        how = f"run({name}, policy=Threshold(), cloud=Local())"
        raise DataflowError(f"{file} declares the dataflow {flow.name!r} but does not run it: end it with {how}")
    found = f"declares {len(flows)} dataflows ({', '.join(flows)}) but runs none" if flows else "runs no dataflow"
    raise DataflowError(f"{file} {found}: call run(flow, policy=..., cloud=...) in it")


class Ends:
    """An observer that keeps how the last run ended."""

    def __init__(self) -> None:
        self._ending: Ending | None = None

    def started(self, header: "Header") -> None:
        pass

    def observed(self, observation: "Observation") -> None:
        pass

    def decided(self, decision: "Decision") -> None:
        pass

    def ended(self, ending: "Ending") -> None:
        self._ending = ending

    def interrupted(self, limit: float | None) -> bool:
        """Whether the user stopped the run before its load or its time limit ended it."""
        ending = self._ending
        return ending is not None and ending.status == "stopped" and (limit is None or ending.time < limit)
