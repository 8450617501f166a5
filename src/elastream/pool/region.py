"""Region manager: reports to its arbiter over HTTP and leases hosts by the arbiter's orders.

State is on disk before it is reported or acted on.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np
from pydantic import TypeAdapter

from elastream.clouds.arbiter_link import ArbiterLink
from elastream.clouds.provider import HostStatus, HostUsage, Phase, Provider
from elastream.core.hosts import HostType
from elastream.errors import ElastreamError, EnvironmentProblem, InputError
from elastream.policies.e2df import regions
from elastream.policies.e2df.regions import Region, RegionRules
from elastream.policies.e2df.snapshot import Applications, Instances, LeasedHosts, Operators, Snapshot, identities
from elastream.pool.state_log import StateLog, steady_clock
from elastream.recording.lines import JournalProblem
from elastream.sharing.messages import RegionOrder, RegionReport

LOG = logging.getLogger("elastream.managers")
ORDER: TypeAdapter[RegionOrder] = TypeAdapter(RegionOrder)


@dataclass(frozen=True)
class RegionState:
    region: Region
    kinds: Mapping[str, str] = field(default_factory=dict)  # type of each host on the order
    lease: tuple[str, ...] = ()  # hosts still to lease
    trying: str = ""  # host being leased; after a crash the outcome is unknown
    release: tuple[str, ...] = ()  # hosts still to release
    leaving: frozenset[str] = frozenset()  # hosts whose applications must leave them


class RegionNode:
    """Region manager that reports its hosts and proposals, and carries out orders.

    It requests the type with the fewest slots. Without orders it keeps its hosts.
    """

    def __init__(self, name: str, rules: RegionRules, types: Iterable[HostType], provider: Provider, log: StateLog) -> None:
        self.rules = rules
        self.types = {kind.name: kind for kind in types}
        self.provider = provider
        self.state = _restore_state(name, log.read)
        # Use of hosts by the last order; None before this process has received one
        self._used: Mapping[str, tuple[int, float]] | None = None
        self._log = log
        log.set_baseline(_state_tables(self.state))

    def report(self, now: float) -> RegionReport:
        """Return the next report; its number is on disk first."""
        mine = self.state.region
        live = {
            name: host
            for name, host in self.provider.hosts().items()
            if name in mine.hosts and (host.there or host.phase is Phase.REQUESTED)
        }
        snapshot = self._snapshot(now, live)
        survey = regions.survey(
            self.rules, snapshot, np.array([h in self.state.leaving for h in mine.hosts], dtype=np.bool_)
        )
        if self._used is None:
            # While the use of hosts is unknown, none may count as empty.
            none = np.zeros(len(mine.hosts), dtype=np.bool_)
            survey = replace(survey, release=none, drain=none, empty=none, idlest=np.full(1, -1))
        smallest = min(self.types.values(), key=lambda kind: (kind.slots, kind.price_rate, kind.name))
        up = {name: host.phase is Phase.UP for name, host in live.items()}
        (region,), (message,) = regions.reports(self.rules, [mine], snapshot, survey, up, {mine.name: smallest})
        self._commit(replace(self.state, region=region))
        return message

    def receive(self, order: RegionOrder, now: float) -> None:
        """Store the steps of an order on disk; `act` carries them out.

        If the order knows a later report than this region, the journal was lost, and numbering continues from the order's.
        """
        before = self.state
        if order.region != before.region.name or order.term < before.region.term:
            return
        self._used = {host: (replicas, math.nan if cpu is None else cpu) for host, replicas, cpu in order.used}
        region, lease, release = regions.receive(before.region, order, now)
        pending = tuple(host for host in (*before.lease, *dict(lease)) if host in region.hosts)
        releasing = tuple(dict.fromkeys(h for h in (*before.release, *release) if h not in region.hosts))
        self._commit(
            RegionState(
                replace(region, number=max(region.number, order.heard)),
                dict(order.hosts),
                pending,
                before.trying,
                releasing,
                frozenset(order.leaving),
            )
        )

    def act(self) -> list[str]:
        """Lease and release pending hosts; return a sentence for each failure, which is retried.

        Each lease is on disk before it is tried and is not repeated after a crash.
        """
        problems: list[str] = []
        if self.state.trying:
            self._commit(replace(self.state, trying=""))
        for host in self.state.lease:
            kind = self.types.get(self.state.kinds[host])
            if kind is None:
                problems.append(f"{host} cannot be leased: there is no host type {self.state.kinds[host]!r} here")
                continue
            self._commit(replace(self.state, lease=_without(self.state.lease, host), trying=host))
            try:
                self.provider.lease({host: kind})
            except ElastreamError as error:
                problems.append(f"{host} cannot be leased: {error}")
                self._commit(replace(self.state, lease=(*self.state.lease, host), trying=""))
            else:
                self._commit(replace(self.state, trying=""))
        for host in self.state.release:
            try:
                self.provider.release([host])
            except ElastreamError as error:
                problems.append(f"{host} cannot be released: {error}")
            else:
                self._commit(replace(self.state, release=_without(self.state.release, host)))
        return problems

    def unordered_hosts(self) -> tuple[str, ...]:
        """Return hosts leased without an order, which may be in use."""
        expected = {*self.state.region.hosts, *self.state.release}
        return tuple(host for host in self.provider.hosts() if host not in expected)

    def _commit(self, state: RegionState) -> None:
        self._log.commit(_state_tables(state))
        self.state = state

    def _snapshot(self, now: float, present: Mapping[str, HostStatus]) -> Snapshot:
        """Return the input of the survey; hosts not leased yet count as coming."""
        names = tuple(self.state.region.hosts)
        coming = (HostStatus(self.state.kinds.get(name, ""), Phase.REQUESTED) for name in names)
        hosts = [present.get(name, later) for name, later in zip(names, coming, strict=True)]
        slots = [self.types[host.type].slots if host.type in self.types else 0 for host in hosts]
        measured = self.provider.measure()
        usage = [measured.get(name, HostUsage()) for name in names]
        applications_use = self._used or {}
        reported = [applications_use.get(name, (0, math.nan)) for name in names]
        replicas = [own.replicas or use[0] for own, use in zip(usage, reported, strict=True)]
        cpu = [use[1] if math.isnan(own.cpu) else own.cpu for own, use in zip(usage, reported, strict=True)]
        on = np.repeat(np.arange(len(hosts)), replicas).astype(np.int64)
        zeros = np.zeros(len(on), dtype=np.int64)
        return Snapshot(
            now,
            (self.state.region.name,),
            LeasedHosts(
                names,
                np.zeros(len(names), dtype=np.int64),
                np.array(slots, dtype=np.int64),
                np.array(cpu, dtype=np.float64),
                np.array([host.phase is Phase.UP for host in hosts], dtype=np.bool_),
            ),
            Instances(zeros, zeros, on, np.full(len(on), math.nan)),
            Operators(("",), np.zeros(1, dtype=np.int64), identities([""])),
            Applications(("",), np.full(1, math.nan), np.full(1, math.nan)),
        )


def _without(hosts: tuple[str, ...], host: str) -> tuple[str, ...]:
    return tuple(each for each in hosts if each != host)


def _state_tables(state: RegionState) -> dict[str, Mapping[str, Any]]:
    return {
        "hosts": state.region.hosts,
        "kinds": state.kinds,
        "lease": dict.fromkeys(state.lease, True),
        "trying": dict.fromkeys(filter(None, [state.trying]), True),
        "release": dict.fromkeys(state.release, True),
        "leaving": dict.fromkeys(state.leaving, True),
        "counters": {"term": state.region.term, "number": state.region.number},
    }


def _restore_state(name: str, tables: Mapping[str, Mapping[str, Any]]) -> RegionState:
    counters = tables.get("counters", {})
    return RegionState(
        Region(name, counters.get("term", 0), counters.get("number", 0), dict(tables.get("hosts", {}))),
        dict(tables.get("kinds", {})),
        tuple(tables.get("lease", {})),
        next(iter(tables.get("trying", {})), ""),
        tuple(tables.get("release", {})),
        frozenset(tables.get("leaving", {})),
    )


class RegionLink(ArbiterLink):
    service_name = "arbiter"
    wrong_service_error = InputError
    refusals = {409: InputError}  # noqa: RUF012 - a constant

    def report(self, report: RegionReport) -> RegionOrder:
        """Send a report and return the current order; raises EnvironmentProblem in time, InputError if refused."""
        return self.ask(ORDER, "PUT", f"/regions/{quote(report.region, safe='')}", asdict(report))


def follow(
    node: RegionNode,
    link: RegionLink,
    period: float,
    *,
    stopped: Callable[[float], bool],
    clock: Callable[[], float] | None = None,
) -> None:
    """Run a region manager until `stopped(period)` returns True.

    While the arbiter is silent, the region keeps its last grants. Refusals after the first report are warnings.

    Raises:
        InputError: The arbiter refuses the first report: the configuration is wrong.
        JournalProblem: The journal cannot be written.
    """
    problem_before, accepted, name, clock = "", False, node.state.region.name, clock or steady_clock()
    while True:
        try:
            _exchange(node, link, clock)
            if problem_before:
                LOG.warning("the arbiter at %s answers again", link.url)
            problem_before, accepted = "", True
        except JournalProblem:
            raise
        except EnvironmentProblem as problem:
            if not problem_before:
                LOG.warning("%s; region %s goes on with its last grants", problem, name)
            problem_before = str(problem)
        except InputError as problem:
            if not accepted:
                raise
            LOG.warning("%s; region %s goes on with its last grants", problem, name)
        for sentence in node.act():
            LOG.warning("%s; it is retried", sentence)
        if stopped(period):
            return


def _exchange(node: RegionNode, link: RegionLink, clock: Callable[[], float]) -> None:
    order = link.report(node.report(clock()))
    node.receive(order, clock())
    for sentence in _refusals(order):
        LOG.info("%s", sentence)
    if order.term and (hosts := node.unordered_hosts()):
        LOG.warning("hosts leased without an order: %s", ", ".join(hosts))


def _refusals(order: RegionOrder) -> list[str]:
    sentences = [f"no more hosts in {order.region}: infrastructure manager: {order.refused}"] if order.refused else []
    return sentences + [f"{host} stays: {manager}: {why}" for host, manager, why in order.kept]
