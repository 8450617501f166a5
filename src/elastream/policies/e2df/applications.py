"""Application manager: grants its operators' proposals and gives hosts back (E2DF, section 4.2)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.policies.e2df.columns import Booleans, Snapshot, ranks
from elastream.policies.e2df.operators import Proposals
from elastream.sharing.holder import Holder, claim
from elastream.sharing.messages import Claim
from elastream.units import ROUNDING


@dataclass(frozen=True, slots=True)
class ApplicationRules:
    """Rules of application managers.

    Args:
        tokens: Reconfigurations allowed at once; inf for no limit.
        window: Time to refill the bucket (s).
        settle: Time for which a granted placement counts before it is observed (s).
    """

    tokens: float = math.inf
    window: float = 60.0
    settle: float = 120.0


class Refusal(IntEnum):
    """Reason for refusing a proposal."""

    GRANTED = 0
    TAKEN = 1
    CRITICAL = 2
    TOKENS = 3

    @property
    def reason(self) -> str:
        """Text of the reason; empty if granted."""
        return ("", "the host was just given to another replica", "the response time is over its target",
                "as much was reconfigured lately as is allowed")[self]  # fmt: skip


@dataclass(frozen=True)
class Application(Holder):
    """State of an application manager beside its hosts."""

    tokens: float = math.inf  # reconfigurations it may grant as of `refilled`
    refilled: float = 0.0
    granted: Mapping[str, float] = field(default_factory=dict)  # time of the last granted placement by host


@dataclass(frozen=True)
class Grants:
    """A `Refusal` for each row of `Proposals`."""

    proposals: Proposals
    refusals: Integers

    @property
    def granted(self) -> Booleans:
        """Mask of granted rows."""
        mask: Booleans = self.refusals == Refusal.GRANTED
        return mask


@dataclass(frozen=True, slots=True)
class Shift:
    """Move of an instance (row) off a host that must be left, to another host (row)."""

    instance: int
    host: int


def initial_placement(operators: Sequence[str], hosts: Sequence[str]) -> dict[str, str]:
    """Return a host for each operator's first instance, spread evenly over `hosts` (the R_init hosts)."""
    return {operator: hosts[number % len(hosts)] for number, operator in enumerate(operators)} if hosts else {}


def refilled(rules: ApplicationRules, applications: Sequence[Application], now: float) -> Floats:
    """Return the tokens of each application at `now`, shape (applications,)."""
    if math.isinf(rules.tokens):
        return np.full(len(applications), math.inf)
    return np.array([min(rules.tokens, a.tokens + (now - a.refilled) * rules.tokens / rules.window) for a in applications])


def grant(snapshot: Snapshot, proposals: Proposals, tokens: Floats) -> Grants:
    """Return the verdicts of all application managers.

    Refuses scale-in while the response time is over target, scale-out to a host without a slot left ("an already used
    resource"), and changes beyond the tokens. The most used operator comes first.

    Args:
        tokens: Reconfigurations that each application may still do.
    """
    application = snapshot.operators.application[proposals.operator]
    refusals = np.zeros(len(proposals), dtype=np.int64)
    refusals[(proposals.change < 0) & snapshot.critical[application]] = Refusal.CRITICAL
    # Operators tie where all are saturated; their identity, not their row, decides then.
    identity = snapshot.operators.identity[proposals.operator]
    order = np.lexsort((identity, -proposals.utilisation, -proposals.change))
    asks = order[proposals.host[order] >= 0]
    late = ranks(proposals.host[asks]) >= snapshot.free[proposals.host[asks]]
    refusals[asks[late]] = Refusal.TAKEN
    alive = order[refusals[order] == Refusal.GRANTED]
    dear = ranks(application[alive]) >= np.floor(tokens[application[alive]] + ROUNDING)
    refusals[alive[dear]] = Refusal.TOKENS
    return Grants(proposals, refusals)


def move_off(snapshot: Snapshot, rows: Iterable[int], usable: Integers, free: Integers) -> tuple[Shift, ...]:
    """Return moves off hosts `rows`, to the least used of `usable`, their region first; whole hosts or nothing.

    Args:
        free: Slots left on each host; reduced in place.
    """
    hosts = snapshot.hosts
    order, first = snapshot.by_host
    cpu = np.where(np.isnan(hosts.cpu[usable]), 1.0, hosts.cpu[usable])
    usable = usable[np.argsort(cpu, kind="stable")]
    shifts: list[Shift] = []
    for row in rows:
        instances = order[first[row] : first[row + 1]]
        here = hosts.region[usable] == hosts.region[row]
        near_first = np.concatenate([usable[here], usable[~here]])
        slots = np.repeat(near_first, free[near_first])[: len(instances)]
        if len(slots) == len(instances):
            np.subtract.at(free, slots, 1)
            shifts += [Shift(*pair) for pair in zip(instances.tolist(), slots.tolist(), strict=True)]
    return tuple(shifts)


def answer(
    rules: ApplicationRules,
    application: Application,
    now: float,
    occupied: frozenset[str],
    critical: bool,
    spare: tuple[tuple[str, int], ...] = (),
) -> tuple[Application, Claim]:
    """Return the application's next claim, without requested hosts that it no longer uses.

    A critical application refuses to leave occupied hosts.

    Args:
        occupied: Hosts with its instances.
    """
    granted = {host: at for host, at in application.granted.items() if now - at < rules.settle}
    needed = {host for host in application.leave if host in occupied or host in granted}
    gone = application.leave.keys() - needed
    refused = tuple(sorted(needed)) if critical else ()
    return claim(replace(application, granted=granted), gone, refused=refused, critical=critical, spare=spare)
