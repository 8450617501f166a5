"""`elastream serve RUN...`: the live page of runs in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from elastream.errors import InputError
from elastream.settings import Address, Listen

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or of Autopilots.")]
At = Annotated[
    Address | None,
    typer.Option("--address", parser=lambda text: Listen().read("--address", text), metavar="[HOST:]PORT",
                 help="Where to listen. The host of a bare port is 127.0.0.1. Default: a free port."),
]  # fmt: skip
Token = Annotated[
    bool, typer.Option("--token/--no-token", help="Admit only who has the token that is printed with the address.")
]


def serve(runs: Runs, address: At = None, token: Token = True) -> None:
    """Show live or ended runs on a page: the dataflow, hosts, decisions and what other fleets would cost.

    It reads the folders alone, so it costs the runs nothing. Who sees the page can pause a run, drain hosts and set bounds.
    """
    from elastream.cli.pause import run_directory
    from elastream.dashboard.page.serving import serve as serve_page

    if len(set(map(Path.resolve, runs))) < len(runs):
        raise InputError("a run is named twice")
    for run in runs:
        run_directory(run)
    address = address or Address("", 0)
    if not token and address.host not in ("", "127.0.0.1", "localhost", "::1"):
        typer.echo(f"elastream: everyone who reaches {address.host} can see and change these runs (--no-token)", err=True)
    serve_page(runs, address, lambda url: typer.echo(f"live page: {url}"), guarded=token)
