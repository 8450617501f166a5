"""The thesis's design behind the Plant seam (chapter 6), simulated: mappers and a ring of reducers.

Actions lease and release hosts and set tokens; peers repair losses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from elastream.core.action import (
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    Outcome,
    ReleaseHost,
    RenewHost,
    SetTokens,
    Status,
    Switch,
)
from elastream.core.alarm import Alarm
from elastream.core.hosts import HostState, Lease
from elastream.core.observation import Composition, Context, Observation
from elastream.core.ring import Ring
from elastream.core.wording import counted
from elastream.simulator.plant import SimulatedClock
from elastream.simulator.pool import Event, SimulatedHosts
from elastream.units import ROUNDING
from elastream_papers.thesis.resilience.reducers.checkpoints import Checkpoints
from elastream_papers.thesis.resilience.reducers.cluster import Reducers
from elastream_papers.thesis.resilience.reducers.handover import Handover
from elastream_papers.thesis.resilience.reducers.nodes import Node
from elastream_papers.thesis.resilience.reducers.peers import Peers
from elastream_papers.thesis.resilience.reducers.serving import serve
from elastream_papers.thesis.resilience.reducers.settings import Protection
from elastream_papers.thesis.resilience.reducers.watching import ReducerMetricsCollector

if TYPE_CHECKING:
    from elastream_papers.thesis.resilience.reducers.cluster import Reducers
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from elastream_papers.thesis.resilience.reducers.cluster import Reducers


class ReducersPlant:
    """Ring as a `core.plant.Plant`; see `making.make_reducers`."""

    def __init__(
        self, context: Context, reducers: Reducers, pool: SimulatedHosts, keyed: str, factors: Mapping[str, float]
    ) -> None:
        self.context, self.reducers, self.pool, self.keyed = context, reducers, pool, keyed
        self.settings = reducers.settings
        self.time = 0.0
        self.clock = SimulatedClock(self)
        self.alarms: dict[str, Alarm] = {}
        self.checkpoints = Checkpoints(reducers)
        self.handover = Handover(reducers, self.checkpoints)
        self.peers = Peers(reducers, self.checkpoints)
        self.watch = ReducerMetricsCollector(context, reducers, self.checkpoints, pool, keyed, factors)
        self.composition = Composition.default(context.graph)
        self.closed = False
        self._leaving: set[str] = set()
        self.peers.fence = self._fence
        reducers.lost = self._lost

    def begin(self, order: Sequence[str]) -> None:
        """Put the running hosts on the ring in this order, with empty state."""
        for row in self.pool.active.tolist():
            self._join(row)
        self.reducers.enact(Ring.even(order), "start", 0.0, 0.0)
        for node in self.reducers.living:
            node.has |= node.fed
            node.low[:] = 0
        zones = sorted({lease.zone for lease in self.pool.leases})
        if 1 < len(zones) <= self.settings.replicas:
            self._sound(
                "fault zones",
                f"{len(zones)} fault zones ({', '.join(zones)}) for state and "
                f"{counted(self.settings.replicas, 'copy', 'copies')}: state whose hosts are one of these is lost with it",
            )
        if self.settings.latency[1] > self.settings.bound:
            self._sound(
                "bound on latency",
                f"network latency goes up to {self.settings.latency[1]:g} s, above the bound (L_n) of "
                f"{self.settings.bound:g} s: "
                "secondaries may evict tuples that a primary has not processed",
            )

    @property
    def ledger(self) -> Sequence[Lease]:
        return self.pool.leases

    @property
    def finished(self) -> bool:
        end = self.reducers.streams.end
        return self.time > end + 1.0 and all(
            owner is not None and owner.alive and not owner.replays and owner.reached > end + 1.0
            for owner in {id(each): each for each in self.reducers.owner}.values()
        )

    def observe(self) -> Observation:
        seen = self.watch.observation(self.time, self.composition)
        return replace(seen, alarms=tuple(self.alarms.values()))

    def exactness(self) -> "Exactness":
        """Return the proof of the state at this moment."""
        return exactness(self.reducers, self.time)

    def incidents(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        self.closed = True
        self.pool.end(self.time)

    def advance(self, until: float) -> None:
        """Simulate up to `until` (seconds); no effect if that has passed."""
        step = self.settings.step
        while self.time < until:
            grid = (math.floor(self.time / step + ROUNDING) + 1) * step
            end = min(until, grid, self.watch.next_tick, self.reducers.agenda.next, self.pool.next_event)
            if end > self.time:
                for node, replay, when in serve(self.reducers, self.reducers.living, self.time, end):
                    self.reducers.restored(node, replay, when)
                self.time = end
            self.reducers.agenda.run_due(self.time)
            while (event := self.pool.due(self.time)) is not None:
                self._run_due(event)
            self._release_empty()
            if self.time >= self.watch.next_tick:
                self._revive()
                self._try_again()
                self.watch.tick(self.time)

    def _run_due(self, event: Event) -> None:
        if event.row < 0:
            row = self.pool.fault_target(event)
            if row is not None:
                self._fail_host(row, self.time)
        elif event.state is HostState.RUNNING:
            if self.pool.leases[event.row].state is HostState.STARTING:
                self.pool.to(event.row, HostState.RUNNING, self.time)
                self._join(event.row)
        else:
            self.pool.to(event.row, event.state, self.time)

    def _join(self, row: int) -> None:
        kind = self.pool.leases[row].type
        node = self.reducers.join(
            self.pool.leases[row].host, row, kind.cores, kind.speed, kind.bandwidth or self.settings.bandwidth, self.time
        )
        if self.settings.protection is Protection.PEERS:
            self.peers.start(node, self.time)

    # Losses

    def fail(self, node: Node, now: float, since: float | None = None) -> None:
        """Lose `node` with buffers, state and copies. since: begin of the cause."""
        if node.alive:
            self._fail_host(node.row, now if since is None else since)

    def _fail_host(self, row: int, since: float) -> None:
        name = self.pool.leases[row].host
        self.pool.to(row, HostState.LOST, self.time)
        self._leaving.discard(name)
        node = self.reducers.nodes.get(name)
        if node is None:
            return  # it was starting
        node.alive, node.failed_at = False, since
        node.drop(node.fed)
        requested = self.handover.requested
        if requested is not None and name in requested.ring:
            self.handover.forget(self.time)
        if self.settings.protection is not Protection.PEERS:
            reassigned(self.reducers, node, self.time)

    def _fence(self, node: Node, now: float) -> None:
        """Stop a running host declared dead, as mappers report the new ring."""
        watcher = self.reducers.nodes[self.reducers.ring.successors(node.name, 1)[0]] if self.reducers.ring else node
        self._fail_host(node.row, self.checkpoints.cut.get((node.name, watcher.name), now))

    def _lost(self, tuples: int, now: float) -> None:
        self._sound(
            f"state lost at {now:g} s",
            f"{counted(tuples, 'tuple')} of {self.keyed} are lost: no host that is left had a copy of the state "
            f"(replicas: {self.settings.replicas})"
            if self.settings.protection is Protection.PEERS
            else f"{counted(tuples, 'update')} of {self.keyed} are lost with the state of a host, which was local",
        )

    def _sound(self, source: str, said: str) -> None:
        self.alarms[source] = Alarm(source, said, self.time)

    def _revive(self) -> None:
        """Start a new ring on a running host if the ring has lost all its nodes."""
        ring = self.reducers.on_ring
        if not any(node.alive for node in ring):
            left = [node for node in self.reducers.living if self.pool.runs(node.name)]
            if left:
                since = min((node.failed_at for node in ring), default=self.time)
                self.reducers.enact(Ring({left[0].name: 0.0}), "recovery", since, self.time)

    # Actions

    def apply(self, action: Action) -> Outcome:
        """Apply an action; a refusal's reason names the rule."""
        if self.closed:
            return Outcome(action, Status.REFUSED, "the simulation is closed")
        match action:
            case SetTokens():
                status, reason = self._set_tokens(action)
            case LeaseHost():
                status, reason = self.pool.requested(action, self.context, self.time)
            case RenewHost():
                status, reason = self.pool.renew(action.host)
            case DrainHost():
                status, reason = self._drain(action.host)
            case CancelDrain():
                status, reason = self._cancel_drain(action.host)
            case ReleaseHost():
                status, reason = self._release(action.host)
            case _:
                status, reason = Status.REFUSED, f"a ring of reducers has no {type(action).__name__}"
        self._release_empty()
        return Outcome(action, status, reason)

    def switch(self, switches: Sequence[Switch]) -> tuple[Outcome, ...]:
        """Refuse all switches: operators have one alternate each."""
        return tuple(self.apply(each) for each in switches)

    def _set_tokens(self, action: SetTokens) -> tuple[Status, str]:
        if self.settings.protection is not Protection.PEERS:
            return Status.REFUSED, "Storm's assignment of keys to hosts is fixed"
        if refused := action.refusal(self.context.partitions):
            return Status.REFUSED, refused
        ring = Ring(dict(action.tokens))
        for host in ring:
            if not self.pool.runs(host):
                return Status.REFUSED, f"host {host!r} is not running"
        return self._request_ring(ring)

    def _request_ring(self, ring: Ring) -> tuple[Status, str]:
        requested = self.handover.requested
        if requested is None and ring == self.reducers.ring:
            return Status.DONE, ""
        if (requested is not None and requested.ring == ring) or not self.handover.request_ring(ring, self.time):
            return Status.ACCEPTED, "hosts agree on it, and state goes to those that have no copy of it"
        return Status.DONE, ""

    def _hand_over_interval(self, host: str) -> tuple[Status, str]:
        """Hand the interval of `host` to its clockwise neighbour, or to another host."""
        ring = self.handover.requested.ring if self.handover.requested is not None else self.reducers.ring
        if ring is None or host not in ring:
            return Status.DONE, ""
        others = [name for name in ring.nodes if name != host and self.pool.runs(name)]
        if others:
            left = ring
            for name in ring.nodes:
                if name not in others and len(left) > 1:
                    left = left.without(name)
            return self._request_ring(left)
        idle = [node.name for node in self.reducers.living if node.name != host and self.pool.runs(node.name)]
        if not idle:
            return Status.REFUSED, f"no other host runs that could take over what host {host!r} owns"
        return self._request_ring(Ring({idle[0]: 0.0}))

    def _drain(self, host: str) -> tuple[Status, str]:
        row = self.pool.active_row(host)
        if row is None or not self.pool.up[row]:
            return Status.REFUSED, f"host {host!r} is not running"
        if self.pool.leases[row].state is not HostState.DRAINING:
            status, reason = self._hand_over_interval(host)
            self.pool.to(row, HostState.DRAINING, self.time)
            return (Status.ACCEPTED, reason) if status is Status.REFUSED else (status, reason)
        return Status.DONE, ""

    def _cancel_drain(self, host: str) -> tuple[Status, str]:
        status, reason = self.pool.cancel_drain(host, self.time)
        if status is Status.DONE:
            self._leaving.discard(host)
        return status, reason

    def _release(self, host: str) -> tuple[Status, str]:
        row = self.pool.rows.get(host)
        if row is None:
            return Status.REFUSED, f"host {host!r} was never leased"
        state = self.pool.leases[row].state
        if state in (HostState.RELEASING, HostState.RELEASED, HostState.LOST):
            return Status.DONE, ""
        if host in self.reducers.nodes:
            status, reason = self._hand_over_interval(host)
            if status is Status.REFUSED:
                return status, reason
        self._leaving.add(host)
        return Status.ACCEPTED, "the host is shutting down"

    def _try_again(self) -> None:
        if self.handover.requested is None:
            for node in self.reducers.living:
                leaves = node.name in self._leaving or self.pool.leases[node.row].state is HostState.DRAINING
                if leaves and node.own.any():
                    self._hand_over_interval(node.name)
                    return

    def _release_empty(self) -> None:
        for host in sorted(self._leaving):
            node = self.reducers.nodes.get(host)
            requested = self.handover.requested
            if node is not None and (node.own.any() or (requested is not None and host in requested.ring)):
                continue
            self._leaving.discard(host)
            self.pool.to(self.pool.rows[host], HostState.RELEASING, self.time)
            if node is not None:
                node.alive = False
                node.drop(node.fed)


def reassigned(reducers: "Reducers", node: Node, now: float) -> None:
    """Give a lost host's work to the next one after Storm's time-outs."""

    def reassign(at: float) -> None:
        if reducers.ring is None or node.name not in reducers.ring:
            return
        left = [each for each in reducers.on_ring if each.alive]
        if not left:
            reducers.agenda.at(at + reducers.settings.reassign, reassign)
            return
        ring = reducers.ring
        for each in reducers.on_ring:
            if not each.alive and each.failed_at <= at - reducers.settings.reassign:
                ring = ring.without(each.name)
        reducers.enact(ring, "recovery", node.failed_at, at)

    reducers.agenda.at(now + reducers.settings.reassign, reassign)


@dataclass(frozen=True, slots=True)
class Exactness:
    """Tuples at one moment.

    taken_in: in their owners' state; waiting: still to be processed. lacking: neither (violates D1 or D2). twice:
    counted twice (violates D3, as the thesis allows). unowned: of partitions without an owner.
    """

    emitted: int
    taken_in: int
    waiting: int
    lacking: int
    twice: int
    unowned: int

    @property
    def kept(self) -> bool:
        """Return True if D1 and D2 hold: nothing lacks."""
        return self.lacking == 0

    @property
    def complete(self) -> bool:
        """Return True if every tuple is in a state."""
        return self.kept and self.taken_in == self.emitted


def exactness(reducers: "Reducers", now: float) -> Exactness:
    """Return the proof at `now`: each tuple of each partition is counted in exactly one place."""
    settings = reducers.settings
    emitted = reducers.streams.numbers(np.full((settings.mappers, 1), now))
    taken = np.zeros_like(emitted)
    lacking, twice = np.zeros_like(emitted), np.zeros_like(emitted)
    owned = np.zeros(settings.partitions, dtype=np.bool_)
    for node in reducers.living:
        mine = node.own
        assert not (owned & mine).any(), "a partition has two owners"
        owned |= mine
        taken[:, mine] = np.minimum(reducers.processed(node), emitted)[:, mine]
        lacking[:, mine], twice[:, mine] = node.missing[:, mine], node.twice[:, mine]
    return Exactness(
        int(emitted.sum()),
        int((taken - lacking)[:, owned].sum()),
        int((emitted - taken)[:, owned].sum()),
        int(lacking.sum()),
        int(twice.sum()),
        int(emitted[:, ~owned].sum()),
    )
