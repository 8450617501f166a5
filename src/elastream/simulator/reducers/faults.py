"""What fails in a run, and when: hosts and zones at once, links as section 6.2 treats them - as failures of hosts."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from elastream.errors import InputError
from elastream.simulator.reducers.settings import LinkFailure, ZoneFailure

if TYPE_CHECKING:
    from elastream.simulator.reducers.plant import ReducersPlant

MAPPER = "mapper "


def schedule(plant: "ReducersPlant") -> None:
    """Enter the failures of zones and links in the agenda; those of hosts are the pool's. Raises InputError for a link of a
    mapper that does not exist."""
    for fault in plant.settings.faults:
        match fault:
            case ZoneFailure(time, zone):
                plant.reducers.agenda.at(time, _zone(plant, zone))
            case LinkFailure(time, source, _) if source.startswith(MAPPER):
                plant.reducers.agenda.at(time, _from_mapper(plant, fault, _number(plant, source)))
            case LinkFailure(time):
                plant.reducers.agenda.at(time, _between_hosts(plant, fault))


def _number(plant: "ReducersPlant", source: str) -> int:
    number, mappers = source.removeprefix(MAPPER), plant.settings.mappers
    if not (number.isdecimal() and int(number) < mappers):
        raise InputError(f"a link from {source!r} fails; mappers are 'mapper 0' to 'mapper {mappers - 1}'")
    return int(number)


def _zone(plant: "ReducersPlant", zone: str) -> Callable[[float], None]:
    def fail(now: float) -> None:
        for node in list(plant.reducers.living):
            if plant.pool.leases[node.row].zone == zone:
                plant.fail(node, now)

    return fail


def _from_mapper(plant: "ReducersPlant", fault: LinkFailure, mapper: int) -> Callable[[float], None]:
    """The multicast misses an answer of the host, and the mappers take it for dead."""

    def fail(now: float) -> None:
        node = plant.reducers.nodes.get(fault.target)
        if node is not None and node.alive:
            node.cut[mapper] = now
            plant.reducers.agenda.at(now + 2 * plant.settings.bound, lambda at: plant.fail(node, at, since=now))

    return fail


def _between_hosts(plant: "ReducersPlant", fault: LinkFailure) -> Callable[[float], None]:
    """Checkpoints from `source` no longer reach `target`; where that watches it, it takes it for dead."""

    def fail(now: float) -> None:
        plant.checkpoints.cut[fault.source, fault.target] = now

    return fail
