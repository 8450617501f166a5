"""A pool of machines as a process that several applications talk to: who is a member, and what each may use now.

What is decided is `elastream.planning.sharing.pooling`'s. Here is what a process adds: keys that tell one application from
another of its name, one lock, and a journal that is written before anybody hears of a change, so that a pool which is
killed and started again knows who holds what. Transport is left to others (`elastream.services.pool_service`). Times are
seconds since the epoch: they must go on through a restart.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any

from elastream.model.cloud import Lease
from elastream.model.errors import CloudError
from elastream.planning.managers.messages import View
from elastream.planning.sharing.messages import Claim, PoolOffer
from elastream.planning.sharing.pooling import (
    Machine,
    Member,
    Paid,
    PoolRules,
    PoolState,
    Stance,
    admission,
    bill,
    hear,
    join,
    leave,
    round_of,
    view,
)
from elastream.services.state_log import StateLog

__all__ = ["PoolNode", "Stranger"]


class Stranger(CloudError):
    """Who speaks is no member of the pool: it never joined, has left, or was silent for so long that it counted as dead."""


class PoolNode:
    """The pool of `offer` under `rules`; what it remembers is in `log`. Methods may be called from several threads.

    clock: seconds since the epoch.
    """

    def __init__(self, offer: PoolOffer, rules: PoolRules, log: StateLog, clock: Callable[[], float]) -> None:
        self.offer = offer
        self.rules = rules
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._state, self._keys = _read(offer, log.read, clock())
        log.known(_tables(self._state, self._keys))

    @property
    def state(self) -> PoolState:
        """Who holds what."""
        return self._state

    def join(self, application: str, priority: float, minimum: int) -> str:
        """Take an application in; the key that its claims are to carry. Raises CloudError where it cannot be taken."""
        with self._lock:
            now = self._clock()
            state = round_of(self.rules, self._state, now)
            if refusal := admission(state, application, minimum):
                raise CloudError(refusal)
            self._keys[application] = secrets.token_hex(16)
            self._become(join(state, application, priority, minimum, now))
            return self._keys[application]

    def claim(self, claim: Claim, key: str) -> tuple[View, float]:
        """Take in what a member says; what is in force for it, and what it owes so far. Raises Stranger."""
        with self._lock:
            now = self._clock()
            name = claim.holding.application
            self._check(name, key)
            self._become(round_of(self.rules, hear(self.rules, self._state, now, claim), now))
            self._check(name, key)
            return view(self._state, name), self._bill(now).get(name, 0.0)

    def leave(self, application: str, key: str) -> None:
        """An application has ended. Raises Stranger."""
        with self._lock:
            self._check(application, key)
            self._become(leave(self._state, application, self._clock()))

    def round(self) -> None:
        """What happens as time passes: to be called every second or so."""
        with self._lock:
            self._become(round_of(self.rules, self._state, self._clock()))

    def bill(self) -> dict[str, float]:
        """What each application owes so far, those that are gone too."""
        with self._lock:
            return self._bill(self._clock())

    def _bill(self, now: float) -> dict[str, float]:
        return bill([*self._state.ended, *self._state.leases.values()], now)

    def _check(self, application: str, key: str) -> None:
        known = self._keys.get(application, "") if application in self._state.members else ""
        if not known or not hmac.compare_digest(known.encode(), key.encode()):
            raise Stranger(f"{application!r} is no member of the pool {self.offer.name!r} now")

    def _become(self, state: PoolState) -> None:
        self._keys = {name: key for name, key in self._keys.items() if name in state.members}
        self._log.commit(_tables(state, self._keys))
        self._state = state


def _tables(state: PoolState, keys: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """What must survive the process. What a member last said it says again within a second."""
    return {
        "machines": {name: machine for name, machine in state.machines.items() if machine != Machine(machine.kind)},
        "members": {
            name: {"priority": m.priority, "minimum": m.minimum, "term": m.term, "key": keys[name]}
            for name, m in state.members.items()
        },
        "leases": {name: _paid(paid) for name, paid in state.leases.items()},
        "ended": {str(number): _paid(paid) for number, paid in enumerate(state.ended)},
    }


def _paid(paid: Paid) -> dict[str, Any]:
    lease = paid.lease
    return {
        "machine": lease.host,
        "kind": lease.type.name,
        "since": lease.since,
        "until": lease.until,
        "spells": [list(spell) for spell in paid.spells],
    }


def _read(offer: PoolOffer, tables: Mapping[str, Mapping[str, Any]], now: float) -> tuple[PoolState, dict[str, str]]:
    """The state as an earlier process left it. Nobody could be heard meanwhile: silence counts from now."""
    kinds = {kind.name: kind for kind in offer.kinds}

    def paid(fields: Mapping[str, Any]) -> Paid:
        lease = Lease(fields["machine"], kinds[fields["kind"]], fields["since"])
        return Paid(replace(lease, until=fields["until"]), tuple((who, a, b) for who, a, b in fields["spells"]))

    machines = {name: Machine(kind) for name, kind in offer.kind_of_machine.items()}
    known = {
        name: Machine(**{**fields, "stance": Stance(fields["stance"]), "until": float(fields["until"])})
        for name, fields in tables.get("machines", {}).items()
    }
    for name, machine in known.items():
        if name not in machines or machines[name].kind != machine.kind:
            raise CloudError(
                f"the journal of the pool {offer.name!r} knows a machine {name} of kind {machine.kind!r}, which "
                "it has no more: give a pool of other machines another journal"
            )
    told = tables.get("members", {})
    state = PoolState(
        kinds,
        machines | known,
        {name: Member(m["priority"], m["minimum"], m["term"], heard=now) for name, m in told.items()},
        {name: paid(fields) for name, fields in tables.get("leases", {}).items()},
        tuple(paid(fields) for _, fields in sorted(tables.get("ended", {}).items(), key=lambda each: int(each[0]))),
    )
    return state, {name: member["key"] for name, member in told.items()}
