"""`elastream experiment NAME`: compares the policies, or repeats a paper's evaluation and compares its figures."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.tables import print_table
from elastream.errors import EnvironmentProblem

if TYPE_CHECKING:
    from rich.console import Console

    from elastream.evaluation.experiments import Experiment
    from elastream.evaluation.page import Page

# Exit status if a check is missed.
MISSED_STATUS = 1
# FILE of --json for standard output; text goes to standard error then.
STDOUT = Path("-")


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before the work."""
    if path is not None and path != STDOUT:
        folder = next(each for each in path.absolute().parents if os.path.exists(each))
        exists = os.path.exists(path)
        possible = not os.path.isdir(path) if exists else os.path.isdir(folder)
        if not possible or not os.access(path if exists else folder, os.W_OK):
            raise typer.BadParameter(f"{path} cannot be written")
    return path


def page_file(path: Path | None) -> Path | None:
    if path == STDOUT:
        raise typer.BadParameter("a page cannot go to standard output: name a file")
    return _writable(path)


Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", callback=page_file, help="Write one self-contained page with plots."),
]
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", callback=_writable, help="Write figures and checks. -: standard output."),
]

Plant = Annotated[
    str | None,
    typer.Option("--plant", metavar="PLANT", help="simulated (the default if there is one), or spark (takes minutes)."),
]


def experiment(  # noqa: PLR0913
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="policies, or a paper: visp, e2df, nstorm, otd, elastic-allocator, dynamic-dataflow, reactive, lookahead "
            "or resilience.",
        ),
    ],
    plant: Plant = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run only the smallest part, in seconds.")] = False,
    sensitivity: Annotated[bool, typer.Option("--sensitivity", help="Also vary every assumption.")] = False,
    moves: Annotated[
        str | None,
        typer.Option("--moves", metavar="N,N,...", help="nstorm: tasks moved by a re-deployment, such as 1,4,16."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="nstorm: also a load of 70 %, replaced executors and other cycles.")
    ] = False,
    one: Annotated[
        str | None,
        typer.Option(
            "--part",
            metavar="PART",
            help="resilience on Spark: kills, moves, checkpoints, throughput or skew; nstorm: figures.",
        ),
    ] = None,
    rates: Annotated[
        list[str] | None,
        typer.Option(
            "--rates",
            metavar="FILE[:key=value,...]",
            help="policies: recorded rates, as for simulate --load, or a folder of them. Repeatable. Default: "
            "../shared/data/rates, if it exists.",
        ),
    ] = None,
    cells: Annotated[
        int | None, typer.Option("--cells", metavar="N", min=1, help="policies: run only N cells, chosen at random.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Write results to FILE as they come. Skip those that are in it."),
    ] = None,
    html: Html = None,
    json_file: Json = None,
) -> None:
    """Compare the policies, or repeat a paper's evaluation; exit status 1 if a bar is missed."""
    from elastream.dashboard.console import make_console
    from elastream.dashboard.progress import progress_bar
    from elastream.evaluation.experiments import OWN, ExperimentOptions, installed
    from elastream.evaluation.findings import counted

    experiments = installed()
    if name not in experiments and experiments.keys() <= {OWN.name}:
        raise EnvironmentProblem("the papers' experiments are a package of their own: pip install elastream-papers")
    if name not in experiments:
        raise typer.BadParameter(f"there is no experiment {name!r} (there are: {', '.join(experiments)})")
    chosen: Experiment = experiments[name].load()
    named, plant = plant, plant or chosen.plants[0]
    if plant not in chosen.plants:
        raise typer.BadParameter(f"{name} does not run on the plant {plant!r} (it runs on: {', '.join(chosen.plants)})")
    options = {"--plant": named, "--part": one, "--moves": moves, "--cells": cells}
    command = " ".join(
        (
            f"elastream experiment {name}",
            *(f"{option} {value}" for option, value in options.items() if value is not None),
            *(f"--rates {place}" for place in rates or ()),
            *(flag for flag, is_set in (("--quick", quick), ("--sensitivity", sensitivity), ("--full", full)) if is_set),
        )
    )
    part = {"moves": _numbers(moves), "full": full or None, "part": one, "rates": rates, "cells": cells}
    part = {option: value for option, value in part.items() if value is not None}
    if unknown := part.keys() - set(chosen.options(plant)):
        raise typer.BadParameter(f"{name} on the plant {plant!r} has no option --{min(unknown)}")
    if resume is not None and plant != "simulated":
        raise typer.BadParameter("--resume is for simulated cases: an experiment on Spark runs in one go")
    about = {"command": command, "load": round(os.getloadavg()[0], 2)}  # before the experiment adds to it
    console = make_console(stderr=json_file == STDOUT)
    with progress_bar(console) as progress:
        workers = os.cpu_count() or 1
        outcome = chosen.run(plant, ExperimentOptions(quick, sensitivity, workers, progress, resume, console.print), part)
    for table in outcome.page.tables:
        if "why" not in table.header:
            print_table(console, table)
    if outcome.verdict:
        console.print(outcome.verdict)
    console.print(f"{counted(outcome.checks)} ({plant}, {outcome.figures['seconds']:g} s)")
    figures = outcome.to_json()
    figures["environment"] |= about
    save(console, figures, outcome.page, html, json_file)
    if not outcome.holds:
        raise typer.Exit(MISSED_STATUS)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    try:
        counts = None if text is None else tuple(dict.fromkeys(int(number) for number in text.split(",")))
    except ValueError:
        counts = (0,)
    if counts is not None and not all(1 <= number <= 16 for number in counts):
        raise typer.BadParameter(f"--moves takes numbers of tasks from 1 to 16, such as 1,4,16, not {text!r}")
    return counts


def save(console: "Console", figures: Mapping[str, Any], page: "Page", html: Path | None, json_file: Path | None) -> None:
    """Write `figures` and `page` to the files that the options name, if they name any."""
    from elastream.evaluation.page import render
    from elastream.recording.directory import write_text

    if json_file is not None:
        text = json.dumps(figures, indent=1, allow_nan=False) + "\n"
        if json_file == STDOUT:
            typer.echo(text, nl=False)
        else:
            console.print(f"figures: {write_text(json_file, text, 'figures')}")
    if html is not None:  # last: if it fails, the figures are written
        console.print(f"page: {write_text(html, render(page), 'page')}")
