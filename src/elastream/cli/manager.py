"""`elastream manager FILE`: an arbiter of shared hosts, or the manager of a region, as a process."""

import logging
import select
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from elastream.pool.document import ArbiterSetting, RegionSetting


def manager(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML document with 'arbiter:' or 'region:'.")],
) -> None:
    """Run an arbiter of shared hosts or a region's manager, until SIGTERM or Ctrl-C.

    The next one resumes from its journal.
    """
    from elastream.pool.document import ArbiterSetting, load_manager

    setting = load_manager(file)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if isinstance(setting, ArbiterSetting):
        _arbiter(setting)
    else:
        _region(setting)


def _arbiter(setting: "ArbiterSetting") -> None:
    from elastream.pool.arbiter import ArbiterNode
    from elastream.pool.service import listening, serve
    from elastream.pool.state_log import StateLog, steady_clock

    with listening(setting.host, setting.port) as at:
        log = StateLog(setting.journal, f"arbiter {setting.offer.name!r}")
        node = ArbiterNode(
            setting.offer,
            setting.rules,
            log,
            steady_clock(),
            machines=setting.machines,
            regions=setting.regions,
            entitlements=setting.entitlements,
            period=setting.period,
        )
        kinds = [*setting.machines.values()]
        supply = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
        supply = supply or f"regions {', '.join(setting.regions)}"
        how = "http" if setting.certificate is None else "https"
        typer.echo(f"arbiter {setting.offer.name!r} at {how}://{setting.host}:{setting.port}: {supply}")
        try:
            serve(node, at, setting.token, certificate=setting.certificate, key=setting.key, period=setting.period)
        finally:
            log.close()
            for application, owed in sorted(node.bill().items()):
                typer.echo(f"{application} owes {owed:.2f}")


def _region(setting: "RegionSetting") -> None:
    from elastream.clouds.host_directory import HostDirectory
    from elastream.pool.region import RegionLink, RegionNode, follow
    from elastream.pool.state_log import StateLog

    # A signal only ends the wait between two rounds, so that a round is finished and written.
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    log = StateLog(setting.journal, f"region manager of {setting.name}")
    node = RegionNode(setting.name, setting.rules, setting.types, HostDirectory(setting.hosts, setting.types), log)
    typer.echo(f"region manager of {setting.name}, {len(node.state.region.hosts)} hosts known")
    with RegionLink(setting.arbiter, setting.token, certificate=setting.certificate) as link:
        follow(node, link, setting.period, stopped=lambda seconds: bool(select.select([woken], [], [], seconds)[0]))
    log.close()
