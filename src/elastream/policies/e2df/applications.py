"""The application manager: grants proposals of its operators, and releases hosts (E2DF, section 4.2).

It decides for a whole application: no slot is granted twice, a token bucket limits reconfigurations, and while the response
time is over its target no replica and no host is removed. Decisions for many applications are columns; the state of one
about its hosts is a value (`Application`).
"""

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
    """tokens, window: at most `tokens` reconfigurations at once, refilled every `window` seconds; inf: no limit.

    settle: seconds for which a placement that was granted counts although it was not seen yet.
    """

    tokens: float = math.inf
    window: float = 60.0
    settle: float = 120.0


class Refusal(IntEnum):
    """Why a proposal is refused."""

    GRANTED = 0
    TAKEN = 1
    CRITICAL = 2
    TOKENS = 3

    @property
    def reason(self) -> str:
        """In a few words; empty where it is granted."""
        return ("", "the host was just given to another replica", "the response time is over its target",
                "as much was reconfigured lately as is allowed")[self]  # fmt: skip


@dataclass(frozen=True)
class Application(Holder):
    """State of an application manager, besides its hosts.

    tokens, refilled: reconfigurations that it may still grant, as of that time. granted: placements by host, with their
    time.
    """

    tokens: float = math.inf
    refilled: float = 0.0
    granted: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Grants:
    """The answer to `Proposals`, row by row: a `Refusal` each."""

    proposals: Proposals
    refusals: Integers

    @property
    def granted(self) -> Booleans:
        """Rows that are granted."""
        given: Booleans = self.refusals == Refusal.GRANTED
        return given


@dataclass(frozen=True, slots=True)
class Shift:
    """A replica (its row) that goes to another host (its row), because its own is to be left."""

    replica: int
    host: int


def initial_placement(operators: Sequence[str], hosts: Sequence[str]) -> dict[str, str]:
    """A host for each operator's first replica: over all `hosts`, as many on each as possible alike (R_init of them)."""
    return {operator: hosts[number % len(hosts)] for number, operator in enumerate(operators)} if hosts else {}


def refilled(rules: ApplicationRules, applications: Sequence[Application], now: float) -> Floats:
    """Tokens of each application at `now`; shape (applications,)."""
    if math.isinf(rules.tokens):
        return np.full(len(applications), math.inf)
    return np.array([min(rules.tokens, a.tokens + (now - a.refilled) * rules.tokens / rules.window) for a in applications])


def grant(snapshot: Snapshot, proposals: Proposals, tokens: Floats) -> Grants:
    """The verdict of every application manager on the proposals of its operators.

    tokens: reconfigurations that each application may still do; shape (applications,).

    Refused is, in this order: a scale-in while the response time is over its target; a scale-out to a host whose last slot
    went to another proposal (paper: "an already used resource"); what the token bucket has no token for. The most used
    operator comes first, scale-outs before scale-ins.
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
    """Where the replicas on hosts `rows` go: the least used of the hosts `usable` with a slot left, in their region first.

    free: slots left on each host of the snapshot, brought down by what is placed. A host is emptied as a whole or not at
    all: half of a host cannot be given back.
    """
    hosts = snapshot.hosts
    order, first = snapshot.by_host
    cpu = np.where(np.isnan(hosts.cpu[usable]), 1.0, hosts.cpu[usable])
    usable = usable[np.argsort(cpu, kind="stable")]
    shifts: list[Shift] = []
    for row in rows:
        replicas = order[first[row] : first[row + 1]]
        here = hosts.region[usable] == hosts.region[row]
        near_first = np.concatenate([usable[here], usable[~here]])
        slots = np.repeat(near_first, free[near_first])[: len(replicas)]
        if len(slots) == len(replicas):
            np.subtract.at(free, slots, 1)
            shifts += [Shift(*pair) for pair in zip(replicas.tolist(), slots.tolist(), strict=True)]
    return tuple(shifts)


def answer(
    rules: ApplicationRules,
    application: Application,
    now: float,
    occupied: frozenset[str],
    critical: bool,
    spare: tuple[tuple[str, int], ...] = (),
) -> tuple[Application, Claim]:
    """The application's claim, letting go of the hosts that it was asked to leave and no longer needs.

    occupied: hosts that its replicas were seen on. A host that a placement granted lately points at counts as occupied. A
    critical application refuses to leave hosts that are occupied; empty ones it lets go.
    """
    granted = {host: at for host, at in application.granted.items() if now - at < rules.settle}
    needed = {host for host in application.leave if host in occupied or host in granted}
    gone = application.leave.keys() - needed
    refused = tuple(sorted(needed)) if critical else ()
    return claim(replace(application, granted=granted), gone, refused=refused, critical=critical, spare=spare)
