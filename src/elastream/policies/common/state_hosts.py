"""Lease of a host for the memory that state needs."""

import math
from collections.abc import Sequence

from elastream.core.action import Action, CancelDrain, LeaseHost
from elastream.core.hosts import HostType
from elastream.core.memory import NEARLY, lacking
from elastream.core.observation import Observation
from elastream.core.wording import at_most
from elastream.policies.common.measures import types_to_lease

# Rows are tried from the top. "In time" is the start of a host and `MARGIN_S` from now; until then state grows at its
# forecast rate. It fits if all partitions, largest first, find room on usable hosts with `NEARLY` of each limit left free.
# | memory and hosts | plan |
# | --- | --- |
# | use or limit of a usable host unknown | nothing |
# | a host is coming | nothing: it is awaited, whatever it was leased for |
# | state fits in time | nothing |
# | a drain can be cancelled | cancel one |
# | `max_hosts` are leased | a remark |
# | no type offered has room for the largest partition that fits on no host | a remark |
# | otherwise | lease one host of the cheapest such type |
# The cheapest has the lowest price per MB of room. Only the room that state lacks counts, unless state grows. Releases are
# refused while state, grown for `memory.KEEP_S`, needs the host (`memory.shortage`): stricter than what leases one.
#
# Seconds before hosts are nearly full by which a leased one is there.
MARGIN_S = 600.0


def lease_for_state(
    observation: Observation, usual: HostType, only: str | None = None
) -> tuple[Sequence[Action], tuple[str, ...]]:
    """Return an action that adds room for state, if it lacks, and remarks.

    Args:
        usual: Type that is leased for load.
        only: Name of the only type to lease. None: any in the usual one's region.
    """
    if observation.coming or (lack := lacking(observation, usual.start + MARGIN_S, NEARLY)) is None:
        return (), ()
    context, why = observation.context, lack.sentence()
    for host in observation.recoverable[:1]:
        return (CancelDrain(host, why=why),), ()
    if len(observation.leases) >= context.max_hosts:
        return (), (f"{at_most(context.max_hosts, context.limit)}, and {why}",)
    offered = [usual] if only else [each for each in context.leasable.values() if each.region == usual.region]
    rooms = [(room, each) for each in offered if (room := lack.room(each)) >= lack.stuck]
    if not rooms:
        return (), (f"{why}; no host type offered has room for {lack.stuck:.0f} MB",)
    # Room beyond the need is worth nothing, unless state grows into it.
    useful = math.inf if lack.seconds else lack.missing
    _, best = min(
        rooms,
        key=lambda pair: (
            pair[1].price / pair[1].billing.unit / min(pair[0], useful),
            pair[1].name != usual.name,
            pair[1].memory,
        ),
    )
    (kind,) = types_to_lease(observation, best, 1)
    return (LeaseHost(observation.host_name(), kind.name, kind.region, why=why),), ()
