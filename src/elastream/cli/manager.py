"""`elastream manager FILE`: an infrastructure or a region manager as a process of its own, until it is told to stop."""

import logging
import signal
import sys
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from elastream.services.manager_document import InfrastructureSetting, RegionSetting

__all__ = ["manager"]


def manager(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML document with 'infrastructure:' or 'region:'.")],
) -> None:
    """Run an infrastructure or a region manager; SIGTERM or Ctrl-C ends it, and a journal lets the next one go on."""
    from elastream.services.manager_document import InfrastructureSetting, load_manager

    setting = load_manager(file)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if isinstance(setting, InfrastructureSetting):
        _infrastructure(setting)
    else:
        _region(setting)


def _infrastructure(setting: "InfrastructureSetting") -> None:
    from elastream.services.managers import serve
    from elastream.services.nodes import InfrastructureNode
    from elastream.services.state_log import StateLog

    log = StateLog(setting.journal, "infrastructure manager")
    node = InfrastructureNode(setting.rules, log, setting.regions, setting.applications)
    typer.echo(f"infrastructure manager at {setting.address}:{setting.port}, {len(node.state.hosts)} hosts known")
    serve(node, setting.token, setting.address, setting.port, setting.period)
    log.close()


def _region(setting: "RegionSetting") -> None:
    from elastream.clouds.host_directory import HostDirectory
    from elastream.services.managers import InfrastructureLink, follow
    from elastream.services.nodes import RegionNode
    from elastream.services.state_log import StateLog

    over = Event()

    def stop(*_: Any) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log = StateLog(setting.journal, f"region manager of {setting.name}")
    node = RegionNode(setting.name, setting.rules, setting.types, HostDirectory(setting.hosts), log)
    typer.echo(f"region manager of {setting.name}, {len(node.state.region.hosts)} hosts known")
    with InfrastructureLink(setting.infrastructure, setting.token) as link:
        follow(node, link, setting.period, stopped=over.wait)
    log.close()
