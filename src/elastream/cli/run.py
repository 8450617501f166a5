"""`elastream run FILE`: runs a program or document with a live view, and writes a report."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from elastream.cli.options import Scaling, as_some_seconds, named_by
from elastream.errors import DataflowError, InputError

if TYPE_CHECKING:
    from elastream.core.decision import Decision
    from elastream.core.observation import Observation
    from elastream.recording.observer import Ending, Header, Observer

LIMITED = "End the run so long after its hosts and queries have started and its load begins, e.g. 3min."

Program = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A Python program that calls run(...), or a YAML document; of a resumed run, by default its own.",
    ),
]
Input = Annotated[str | None, typer.Option(metavar="PATH", help="Read this file or folder instead of the dataflow's.")]
ObserveOnly = Annotated[bool, typer.Option("--observe-only", help="Plan and record, but apply no action.")]
Record = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a second copy of the recording.")]
Runs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder or address (hdfs://...) for the run's folder; default: the file's, or runs."),
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
Retention = Annotated[
    float | None,
    typer.Option(parser=as_some_seconds, metavar="TIME", help="Keep observations and decisions on disk for so long."),
]
Partitions = Annotated[
    int | None,
    typer.Option(
        "--state-partitions", min=1, metavar="NUMBER", help="Key groups of each keyed operator, for all of a run."
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics at this port of 127.0.0.1."),
]
Events = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Append events as JSON lines; -: to standard error."),
]
Traces = Annotated[
    bool, typer.Option("--traces", help="Make OpenTelemetry spans of rounds and actions, for what the program has set up.")
]
Report = Annotated[Path | None, typer.Option(metavar="FILE", help="File of the report; default: in the run's folder.")]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Go on with a run that was stopped, failed or killed: its folder or address."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace the results of an earlier run where the sinks write.")]


def run(
    file: Program = None,
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
    resume: Resume = None,
    fresh: Fresh = False,
    replicas: Replicas = None,
    retention: Retention = None,
    state_partitions: Partitions = None,
    scaling: Scaling = None,
    metrics_port: MetricsPort = None,
    events: Events = None,
    traces: Traces = False,
) -> None:
    """Run a dataflow with a live view, and write a report."""
    from elastream.api.options import RunOptions
    from elastream.cli.program import execute

    given = {
        "input": _placed(input),
        "policy": policy,
        "cloud": cloud,
        "guards": _placed(guards),
        "consistency": consistency,
        "replicas": None if replicas is None else str(replicas),
        "retention": None if retention is None else str(retention),
        "state_partitions": None if state_partitions is None else str(state_partitions),
        "scaling": "\n".join(scaling) if scaling else None,
    }
    kept = {name: value for name, value in given.items() if value is not None}
    if resume is None:
        if file is None:
            raise InputError("name a program or a document: elastream run FILE; or a run to go on with: --resume RUN")
    else:
        from elastream.api.folder import on_this_machine
        from elastream.recording.file_systems import FILES_REACHED_BY, reached_by

        os.environ[FILES_REACHED_BY] = reached_by({})
        resume = on_this_machine(resume).resolve()
        record, report = (None if each is None else each.resolve() for each in (record, report))
        file, before = _of_earlier(resume, file)
        kept = {**before, **kept}
    ends = Ends()
    decides = named_by(kept["policy"], "policy", file) if "policy" in kept else None
    leases = named_by(kept["cloud"], "cloud", file) if "cloud" in kept else None
    options = RunOptions(
        input=kept.get("input"),
        observe_only=observe_only,
        runs=runs,
        record=record,
        limit=limit,
        observers=(ends, *asked_for(metrics_port, events, traces)),
        policy=decides,
        cloud=leases,
        live=live,
        report=report,
        guards=Path(kept["guards"]) if "guards" in kept else None,
        consistency=kept.get("consistency"),
        replicas=None if "replicas" not in kept else int(kept["replicas"]),
        retention=None if "retention" not in kept else float(kept["retention"]),
        state_partitions=None if "state_partitions" not in kept else int(kept["state_partitions"]),
        resume=resume,
        fresh=fresh,
        scaling=kept["scaling"].splitlines() if "scaling" in kept else (),
        program={"file": str(file.resolve()), "folder": os.getcwd(), "options": kept},
    )
    if (names := execute(file, options)) is not None:
        without_run(file, names)
    if ends.interrupted(limit):
        raise KeyboardInterrupt


def asked_for(metrics_port: int | None, events: str | None, traces: bool = False) -> "list[Observer]":
    """Observers that serve metrics, write events and make spans.

    Raises EnvironmentProblem where the port or the file cannot be had.
    """
    from elastream.errors import EnvironmentProblem
    from elastream.observability.events import EventLog
    from elastream.observability.metrics import PrometheusObserver
    from elastream.observability.tracing import SpanObserver

    found: list[Observer] = [] if events is None else [EventLog(events)]
    if traces:
        found.append(SpanObserver())
    if metrics_port is not None:
        try:
            found.append(PrometheusObserver(port=metrics_port))
        except OSError as error:
            raise EnvironmentProblem(f"--metrics-port {metrics_port}: {error.strerror or error}") from None
    return found


def _placed(path: Path | str | None) -> str | None:
    """A path that says the same in every folder; what is no file here, such as an address or a pattern, is left."""
    return None if path is None else str(Path(path).resolve()) if Path(path).exists() else str(path)


def _of_earlier(run: Path, file: Path | None) -> tuple[Path, Mapping[str, str]]:
    """What to execute to go on with `run`, and with which options, in the folder that it was begun in.

    Raises InputError where the run does not say that, and no `file` does.
    """
    from elastream.recording.directory import RunDirectory
    from elastream.recording.manifest import read_manifest

    manifest = read_manifest(RunDirectory(run))
    program = manifest.program
    if file is None and not program:
        raise InputError(
            f"{run} was not begun by 'elastream run': name its program (elastream run FILE --resume RUN), or give it "
            "run(..., resume=RUN)"
        )
    file = Path(program["file"]) if file is None else file.resolve()
    if program:
        if manifest.files and not Path(program["folder"]).is_dir():
            return file, program.get("options", {})  # begun on another machine: its relative paths are of this folder now
        try:
            os.chdir(program["folder"])
        except OSError as error:
            raise InputError(f"{run} was begun in {program['folder']}: {error.strerror or error}") from error
    return file, program.get("options", {})


def without_run(file: Path, names: Mapping[str, Any]) -> NoReturn:
    """Raise DataflowError that says what a program lacks that ended without calling `run(...)`."""
    from elastream.dataflow.builder import Dataflow

    flows = {name: value for name, value in names.items() if isinstance(value, Dataflow)}
    if len(flows) == 1:
        ((name, flow),) = flows.items()
        how = f"run({name}, cloud=Local())"
        raise DataflowError(f"{file} declares the dataflow {flow.name!r} but does not run it: end it with {how}")
    found = f"declares {len(flows)} dataflows ({', '.join(flows)}) but runs none" if flows else "runs no dataflow"
    raise DataflowError(f"{file} {found}: call run(flow, cloud=...) in it")


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
        from elastream.recording.observer import LIMITED

        limited = limit is not None and ending is not None and ending.reason.startswith(LIMITED)
        return ending is not None and ending.status == "stopped" and not limited
