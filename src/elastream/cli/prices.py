"""`elastream prices`: lists host types and what they cost."""

from pathlib import Path
from typing import Annotated

import typer

from elastream.cli.output import AsJson, print_json


def prices(
    file: Annotated[Path, typer.Argument(metavar="[CSV]", help="Price list, or ec2 for the shipped one.")] = Path("ec2"),
    as_json: AsJson = False,
) -> None:
    """List the host types of a price list, cheapest first, in USD."""
    from elastream.cli.tables import print_table
    from elastream.dashboard.console import make_console
    from elastream.evaluation.page import Table
    from elastream.evaluation.prices import describe, read_prices

    kinds = read_prices(file)
    if as_json:
        print_json(kinds)
        return
    rows = []
    for kind in kinds:
        hour = kind.price / kind.billing.unit * 3600
        core_hour = hour / kind.cores if kind.cores else 0.0
        gib = kind.memory * 1e6 / 2**30
        rows.append((kind.name, f"{kind.cores:g}", f"{gib:g}", f"{hour:.4f}", f"{hour * 730:.2f}", f"{core_hour:.4f}"))
    header = ("type", "cores", "memory, GiB", "per hour", "per month", "per core-hour")
    print_table(make_console(), Table(describe(file), header, tuple(rows)))
