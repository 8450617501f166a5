"""`elastream run FILE`: runs a program or document with a live view, and writes a report."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.options import NAME_FORM, is_quiet, named_by, options_of
from elastream.errors import InputError
from elastream.settings import (
    CommandSettings,
    Flag,
    Fraction,
    Kind,
    PathOf,
    Rules,
    Seconds,
    SparkSettings,
    Whole,
    settings_of,
)

if TYPE_CHECKING:
    from elastream.recording.observer import Observer

Program = Annotated[
    Path | None,
    typer.Argument(
        metavar="FILE",
        help="A Python program that calls run(...), or a YAML document. Default for --resume: the run's own.",
    ),
]
Policy = Annotated[
    str | None, typer.Option(metavar=NAME_FORM, help="Policy to use instead of the file's, or file.py:Class.")
]
Cloud = Annotated[str | None, typer.Option(metavar=NAME_FORM, help="Cloud to use instead of the file's, or file.py:Class.")]


@options_of(CommandSettings)
def run(context: typer.Context, file: Program = None, policy: Policy = None, cloud: Cloud = None, **settings: Any) -> None:
    """Run a dataflow with a live view, and write a report."""
    from elastream.api.run import Command
    from elastream.cli.program import execute
    from elastream.recording.observer import LIMITED, Ending, Observer

    class Last(Observer):
        ending: Ending | None = None

        def ended(self, ending: Ending) -> None:
            self.ending = ending

    folder, resume, declarations = Path(), settings.get("resume"), settings_of(CommandSettings)
    lasting = {name: value for name, value in settings.items() if declarations[name].lasting}
    named = {"policy": policy, "cloud": cloud, **lasting}
    options = {name: _written(name, value) for name, value in named.items() if value is not None}
    if resume is None:
        if file is None:
            raise InputError("name a program or a document: elastream run FILE; or a run to resume: --resume RUN")
    else:
        from elastream.api.folder import on_this_machine
        from elastream.recording.file_systems import FILES_REACHED_BY, reached_by

        os.environ[FILES_REACHED_BY] = reached_by({})
        settings["resume"] = resume = on_this_machine(resume).resolve()
        settings |= {name: settings[name].resolve() for name in ("record", "report") if name in settings}
        file, folder, before = _of_earlier(resume, file)
        options = {**before, **options}
    if is_quiet(context):
        settings["show"] = False
    last = Last()
    with contextlib.chdir(folder):
        earlier = {name: _read(declarations[name].kind, text) for name, text in options.items() if name not in settings}
        settings = {**earlier, **settings}
        if "policy" in options:
            settings["policy"] = named_by(options["policy"], "policy", file)
        if "cloud" in options:
            settings["cloud"] = named_by(options["cloud"], "cloud", file)
        command = Command(
            settings,
            settings.pop("scaling", ()),
            (last, *exporters(settings)),
            {"file": str(file.resolve()), "folder": str(Path.cwd()), "options": options},
        )
        execute(file, command)
    if last.ending is not None and last.ending.status == "stopped":
        limited = settings.get("limit") is not None and last.ending.reason.startswith(LIMITED)
        if not limited:
            raise KeyboardInterrupt


def _written(name: str, value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{key}={text}" for key, text in value.items())
    if (name == "input" or isinstance(value, Path)) and Path(value).exists():
        return str(Path(value).resolve())
    return str(value)


def _read(kind: Kind, text: str) -> Any:
    match kind:
        case Whole():
            return int(text)
        case Seconds() | Fraction():
            return float(text)
        case Flag():
            return text == "True"
        case PathOf():
            return Path(text)
        case Rules():
            return text.splitlines()
        case SparkSettings():
            return kind.read("settings", text.splitlines())
    return text


def exporters(settings: Mapping[str, Any]) -> "list[Observer]":
    """Open the exporters of metrics, events and spans that `settings` name.

    Raises:
        EnvironmentProblem: The port or the file is not available.
    """
    from elastream.errors import EnvironmentProblem
    from elastream.observability.events import EventLog
    from elastream.observability.metrics import PrometheusObserver, metrics_address
    from elastream.observability.tracing import SpanObserver

    observers: list[Observer] = [EventLog(str(settings["events"]))] if "events" in settings else []
    if settings.get("traces"):
        observers.append(SpanObserver())
    if (address := metrics_address(settings.get("metrics"), settings.get("metrics_port"))) is not None:
        try:
            observers.append(PrometheusObserver(port=address.port, host=address.host))
        except OSError as error:
            raise EnvironmentProblem(f"--metrics {address.host}:{address.port}: {error.strerror or error}") from None
    return observers


def _of_earlier(run: Path, file: Path | None) -> tuple[Path, Path, Mapping[str, str]]:
    """Return the program, folder and options with which to resume `run`.

    Raises:
        InputError: The run has no program, and `file` is None.
    """
    from elastream.recording.directory import RunDirectory
    from elastream.recording.manifest import read_manifest

    manifest = read_manifest(RunDirectory(run))
    program = manifest.program
    if file is None and not program:
        raise InputError(
            f"{run} was not started by 'elastream run': name its program (elastream run FILE --resume RUN), or give it "
            "run(..., resume=RUN)"
        )
    file = Path(program["file"]) if file is None else file.resolve()
    if not program:
        return file, Path(), {}
    folder = Path(program["folder"])
    if manifest.files and not folder.is_dir():
        folder = Path()  # begun on another machine: relative paths are now those of this folder
    elif not (folder.is_dir() and os.access(folder, os.X_OK)):
        raise InputError(f"{run} was started in {folder}: No such file or directory")
    return file, folder, program.get("options", {})
