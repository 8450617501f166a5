"""`elastream prices`: lists host types and what they cost."""

from pathlib import Path
from typing import Annotated

import typer


def prices(
    file: Annotated[Path, typer.Argument(metavar="[CSV]", help="Price list, or ec2 for the shipped one.")] = Path("ec2"),
) -> None:
    """List the host types of a price list, cheapest first, in USD."""
    from rich.console import Console

    from elastream.cli.tables import print_table
    from elastream.evaluation.page import Table
    from elastream.evaluation.prices import describe, read_prices

    rows = []
    for kind in read_prices(file):
        hour = kind.price / kind.billing.unit * 3600
        core_hour = hour / kind.cores if kind.cores else 0.0
        gib = kind.memory * 1e6 / 2**30
        rows.append((kind.name, f"{kind.cores:g}", f"{gib:g}", f"{hour:.4f}", f"{hour * 730:.2f}", f"{core_hour:.4f}"))
    header = ("type", "cores", "memory, GiB", "per hour", "per month", "per core-hour")
    print_table(Console(), Table(describe(file), header, tuple(rows)))
