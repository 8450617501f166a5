"""`elastream advise SOURCE`: recommends changes to a job that ran without Elastream."""

import math
from pathlib import Path
from typing import Annotated

import typer

from elastream.cli.experiment import page_file
from elastream.cli.options import as_some_seconds, parsed
from elastream.cli.output import AsJson, print_json

# Exit status if there are findings.
FINDINGS_STATUS = 1


def _price(text: str) -> float:
    from elastream.units import price

    amount, per = parsed(price, text)
    if per is None:
        raise typer.BadParameter(f"{text!r} does not say for how long: write it as '0.096/h'")
    return amount / per * 3600


Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Spark event log, run of Elastream, JSON lines of StreamingQueryProgress, or the address of Spark's web "
        "interface, a history server or Prometheus.",
    ),
]
Target = Annotated[
    float | None,
    typer.Option(parser=as_some_seconds, metavar="TIME", help="Default: 10s, or two trigger intervals if that is longer."),
]
Price = Annotated[float | None, typer.Option(parser=_price, metavar="MONEY/h", help="Price of an executor.")]
Cores = Annotated[
    int | None,
    typer.Option(min=1, max=100_000, metavar="N", help="Cores that the tasks had, for progress and Spark's gauges."),
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", callback=page_file, help="Write one self-contained page."),
]


def advise(
    source: Source,
    target_latency: Target = None,
    price: Price = None,
    cores: Cores = None,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Say what to change in a Spark streaming job, and how many hosts it needs.

    Reads its logs or metrics; starts no Spark. The exit status is 1 if there are findings.
    """
    from elastream.advice.advice import advise as advised
    from elastream.cli.tables import print_table
    from elastream.dashboard.console import make_console
    from elastream.evaluation.page import render
    from elastream.recording.directory import write_text

    advice = advised(source, target_latency, math.nan if price is None else price, cores)
    if html is not None:
        write_text(html, render(advice.page()), "page")
    if as_json:
        print_json(advice.to_json())
    else:
        console = make_console()
        for table in advice.tables():
            print_table(console, table)
        console.print(advice.verdict, highlight=False, markup=False, soft_wrap=True)
    if advice.findings:
        raise typer.Exit(FINDINGS_STATUS)
