"""`elastream pool FILE`: a pool of machines that several applications share, as a process of its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from elastream.services.pool import PoolNode

__all__ = ["pool"]


def pool(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML document with 'pool:' and 'machines:'.")],
) -> None:
    """Share machines among applications; Ctrl-C or SIGTERM ends it, and a journal lets the next one go on."""
    from time import time

    from elastream.services.pool import PoolNode
    from elastream.services.pool_document import load_pool
    from elastream.services.pool_service import serve_pool
    from elastream.services.serving import listening
    from elastream.services.state_log import StateLog

    setting = load_pool(file)
    with listening(setting.host, setting.port) as at:
        log = StateLog(setting.journal, f"pool {setting.offer.name!r}")
        node = PoolNode(setting.offer, setting.rules, log, time)
        machines = ", ".join(f"{count} x {kind}" for kind, count in setting.offer.machines.items())
        typer.echo(f"pool {setting.offer.name!r} at http://{setting.host}:{setting.port}: {machines}")
        try:
            serve_pool(node, at, setting.token)
        finally:
            log.close()
            _tell(node)


def _tell(node: "PoolNode") -> None:
    for application, owed in sorted(node.bill().items()):
        typer.echo(f"{application} owes {owed:.2f}")
