"""Views of runs: `elastream ls`, `status`, `report` and `serve`."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.experiment import page_file
from elastream.cli.options import Recorded
from elastream.cli.orders import Run, run_directory
from elastream.cli.output import AsJson, print_json, time_of_day
from elastream.errors import ElastreamError, InputError
from elastream.settings import Address, Listen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastream.recording.directory import RunDirectory
    from elastream.recording.recorder import Recording
    from elastream.recording.run_state import RunState

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder with the folders of runs.")]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        "--html",
        metavar="FILE",
        callback=page_file,
        help="File to write; default: next to the recording.",
    ),
]

Open = Annotated[bool, typer.Option("--open", help="Open the report in the browser.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or of Autopilots.")]
At = Annotated[
    Address | None,
    typer.Option("--address", parser=lambda text: Listen().read("--address", text), metavar="[HOST:]PORT",
                 help="Where to listen. The host of a bare port is 127.0.0.1. Default: a free port."),
]  # fmt: skip
Token = Annotated[bool, typer.Option("--token/--no-token", help="Require the token that is printed with the address.")]
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
        since, cost = time_of_day(row["since"]), _cost(row)
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
    rows = [("dataflow", figures["dataflow"]), ("since", time_of_day(figures["since"]))]
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


def report(run: Recorded, output: Output = None, open_it: Open = False, as_json: AsJson = False) -> None:
    """Write the HTML report of a recorded run, and print its summary."""
    from elastream.dashboard.console import make_console
    from elastream.dashboard.summary import print_summary
    from elastream.recording.recorder import Recording
    from elastream.report.page import write_report
    from elastream.report.summary import summarise

    recording = Recording.read(run)
    beside = run / "report.html" if run.is_dir() else run.with_suffix(".html")
    summary = summarise(recording)
    path = write_report(recording, output or beside, summary)
    if as_json:
        print_json({**asdict(summary), "report": path})
    else:
        print_summary(recording, make_console(), path, summary)
    if open_it:
        typer.launch(path.resolve().as_uri())


def serve(runs: Runs, address: At = None, token: Token = True) -> None:
    """Show live or ended runs on a page: the dataflow, hosts, decisions and what other fleets would cost.

    It only reads the folders, so it costs the runs nothing. Everyone who sees the page can pause a run, drain hosts and set
    bounds.
    """
    from elastream.dashboard.page.serving import serve as serve_page

    if len(set(map(Path.resolve, runs))) < len(runs):
        raise InputError("a run is named twice")
    for run in runs:
        run_directory(run)
    address = address or Address("", 0)
    if not token and address.host not in ("", "127.0.0.1", "localhost", "::1"):
        typer.echo(f"elastream: everyone who reaches {address.host} can see and change these runs (--no-token)", err=True)
    serve_page(runs, address, lambda url: typer.echo(f"live page: {url}"), guarded=token)


def _cost(figures: "Mapping[str, Any]") -> str:
    from elastream.core.wording import money

    return f"{money(figures['cost'])} {figures['currency']}".strip()


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
