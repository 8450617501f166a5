"""A provider without anything behind it: hosts are up as soon as there is room, and tests say what else happens to them."""

import math
from dataclasses import dataclass, field

from elastream.clouds.provider import HostStatus, HostUsage, Phase, ProviderOffer, RunState
from elastream.core.hosts import HostType
from elastream.errors import CloudError

SMALL = HostType("small", cores=0.5)


@dataclass(eq=False)
class FakeProvider:
    """room: how many hosts may be there at a time. refuses: lease raises that. owes: what `owed` says.

    lost, recalled: hosts that died, and that their owner wants back. reports, asked: what was reported, and the hosts that
    waited or ran at each call of `hosts`. Addresses are `at NAME`.
    """

    types: tuple[HostType, ...] = (SMALL,)
    room: float = math.inf
    patience: float = 30.0
    refuses: str = ""
    owes: float | None = None
    lost: dict[str, str] = field(default_factory=dict)
    recalled: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)  # for now
    deadlines: dict[str, float] = field(default_factory=dict)  # epoch seconds of recalled ones
    reports: list[RunState] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    closed: bool = False
    known: dict[str, HostType] = field(default_factory=dict)
    up: list[str] = field(default_factory=list)

    @property
    def terms(self) -> ProviderOffer:
        return ProviderOffer(self.types, max_hosts=10, patience=self.patience)

    def lease(self, hosts):
        if self.refuses:
            raise CloudError(self.refuses)
        for name in hosts:
            if not name.isalnum():
                raise CloudError(f"{name!r} cannot be a host's name")
        for name, kind in hosts.items():
            self.known.setdefault(name, kind)
        self._start()

    def release(self, hosts):
        for name in hosts:
            if name in self.known:
                self.released.append(name)
            for those in (self.known, self.lost):
                those.pop(name, None)
            if name in self.up:
                self.up.remove(name)

    def hosts(self):
        self._start()
        self.asked.append(tuple(self.known))
        return {name: self._status(name, kind) for name, kind in self.known.items()}

    def measure(self):
        return {name: HostUsage(1.0, 100.0) for name in self.up}

    def report(self, state):
        self.reports.append(state)

    def owed(self):
        return self.owes

    def close(self):
        self.release(list(self.known))
        self.closed = True

    def die(self, host: str, reason: str = "its plug was pulled") -> None:
        self.lost[host] = reason

    def _status(self, name, kind):
        if name in self.lost:
            return HostStatus(kind.name, Phase.GONE, self.lost[name])
        if name not in self.up:
            return HostStatus(kind.name, Phase.REQUESTED, "it waits", refused=name in self.refused)
        recalled, at = name in self.recalled or name in self.deadlines, self.deadlines.get(name)
        return HostStatus(kind.name, Phase.UP, address=f"at {name}", recalled=recalled, deadline=at)

    def _start(self):
        for name in self.known:
            if name not in self.up and name not in self.lost and len(self.up) < self.room:
                self.up.append(name)
