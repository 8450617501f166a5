"""`elastream ls`, `status` and `stop`: runs of a folder, one run, and its end."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.output import AsJson, print_json
from elastream.cli.pause import run_directory
from elastream.errors import ElastreamError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastream.recording.directory import RunDirectory
    from elastream.recording.recorder import Recording
    from elastream.recording.run_state import RunState

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder with the folders of runs.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or of an Autopilot.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the run has ended.")]
WAIT_STEP_S = 0.2
# Figures of a run's folder that cannot be read.
UNREAD: dict[str, Any] = {
    "dataflow": "", "state": "unreadable", "since": None, "cost": math.nan, "currency": "", "in_time": math.nan
}  # fmt: skip


def ls(folder: Folder = Path("runs"), as_json: AsJson = False) -> None:
    """List the runs in FOLDER, the newest first."""
    from elastream.core.wording import percent
    from elastream.dashboard.console import make_console, plain_table
    from elastream.recording.directory import RunDirectory

    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: name the one that holds the folders of runs")
    directories = [directory for each in folder.iterdir() if (directory := RunDirectory(each)).manifest.is_file()]
    rows = sorted(map(_listed, directories), key=lambda row: row["since"] or 0.0, reverse=True)
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(f"no runs in {folder}")
        return
    table = plain_table("id", "dataflow", "state", "since", "cost", "in time")
    for row in rows:
        since, cost = _local(row["since"]), _cost(row)
        table.add_row(row["id"], row["dataflow"], row["state"], since, cost, percent(row["in_time"]))
    make_console().print(table)


def status(run: Run, as_json: AsJson = False) -> None:
    """Show the state and the newest figures of a run."""
    from rich.text import Text

    from elastream.core.metrics import Metric
    from elastream.core.wording import clock, percent, quantity
    from elastream.dashboard.console import make_console, plain_table

    directory = run_directory(run)
    state, recording = _read(directory)
    figures = _figures(directory, state, recording)
    newest = {} if recording is None else _newest(recording)
    ending = None if recording is None else recording.ending
    alarms = [] if recording is None or ending else [alarm for alarm, cleared in recording.alarms if cleared is None]
    figures |= {
        "driver": state.driver,
        "policy": "" if recording is None else recording.header.policy,
        "seconds": math.nan if recording is None else recording.end,
        "hosts": math.nan if recording is None or not len(recording.times) else float(recording.leased[-1]),
        "reason": "" if ending is None else ending.reason,
        "newest": newest,
        "alarms": {alarm.source: alarm.said for alarm in alarms},
    }
    if as_json:
        print_json(figures)
        return
    why = f": {figures['reason']}" if figures["reason"] else ""
    typer.echo(f"{run} {state.state}{f' in process {state.driver}' if state.driver else ''}{why}")
    rows = [("dataflow", figures["dataflow"]), ("since", _local(figures["since"]))]
    if recording is not None:
        rows += [("policy", figures["policy"]), ("length", clock(recording.end))]
        rows += [("hosts", f"{figures['hosts']:.0f}")] if not math.isnan(figures["hosts"]) else []
        rows += [("in time", percent(figures["in_time"]))]
        shown = {name: value for name, value in newest.items() if name != Metric.COST}
        rows += [(name.replace("_", " "), quantity(name, value)) for name, value in shown.items()]
        rows += [("cost", _cost(figures))]
    rows += [("page", directory.page.read_text(encoding="utf-8").strip())] if state.live and directory.page.exists() else []
    rows += [("alarm", f"{source}: {text}") for source, text in figures["alarms"].items()]
    table = plain_table("", "")
    table.show_header = False
    for name, text in rows:
        table.add_row(name, Text(text))
    make_console().print(table)


def stop(run: Run, wait: Wait = True) -> None:
    """End a live run in order, after its start. Of an Autopilot, only the Autopilot ends; its queries continue.

    `elastream run --resume RUN` continues a stopped run.
    """
    from elastream.recording.run_state import driver_of, state_of

    directory = run_directory(run)
    state = state_of(directory)
    if not state.live:
        raise InputError(f"{run} is not live: it is {state.state}")
    directory.request_stop()
    typer.echo(f"{run} (process {state.driver}) ends in order")
    if not wait:
        return
    while driver_of(directory) is not None:
        time.sleep(WAIT_STEP_S)
    typer.echo(f"{run} {state_of(directory).state}")


def _cost(figures: "Mapping[str, Any]") -> str:
    from elastream.core.wording import money

    return f"{money(figures['cost'])} {figures['currency']}".strip()


def _local(seconds: float | None) -> str:
    return "" if not seconds else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _read(directory: "RunDirectory") -> "tuple[RunState, Recording | None]":
    from elastream.recording.recorder import Recording
    from elastream.recording.run_state import state_of

    state = state_of(directory)
    return state, None if state.recording is None else Recording.read(directory.root)


def _newest(recording: "Recording") -> dict[str, float]:
    from elastream.core.metrics import Metric

    if not len(recording.times):
        return {}
    values = {metric: float(recording.application(metric)[-1]) for metric in Metric}
    return {metric: value for metric, value in values.items() if not math.isnan(value)}


def _listed(directory: "RunDirectory") -> dict[str, Any]:
    try:
        return _figures(directory, *_read(directory))
    except ElastreamError:
        return {"id": directory.root.name, **UNREAD}


def _figures(directory: "RunDirectory", state: "RunState", recording: "Recording | None") -> dict[str, Any]:
    from elastream.report.summary import summarise

    run = {"dataflow": state.manifest.flow, "state": state.state, "since": state.manifest.started}
    figures = {"id": directory.root.name, **UNREAD, **run}
    if recording is not None:
        summary = summarise(recording)
        figures |= {"cost": summary.cost, "currency": summary.currency, "in_time": summary.records_within_target}
    return figures
