"""The history of a run, and the rules that it must satisfy.

As in Jepsen, a call to an external party is an *invoke*. It ends as *ok*, *fail* or *unknown* (the response was lost, or
the process died meanwhile). The engine notes, per partition and batch, the executor, the loaded version of the state, the
committed one, and a hash of its content.

Rules besides those of this module: max_hosts (never more leased), one holder (no machine is used by two applications),
work (no host is released while its executor runs a task), unknown (observations are right or unknown, and no policy scales
on unknown figures or a hung query), control (no fault of the control plane ends a run), settled (a while after the last
fault, batches end, no record waits, and hosts do not change).
"""

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


def content_of(partition: int, before: str, start: int, end: int) -> str:
    """Return a partition's state after the records from `start` to `end`, given its state `before` them."""
    return hashlib.blake2b(f"{partition} {before} {start} {end}".encode(), digest_size=6).hexdigest()


def row_of(start: int, end: int) -> str:
    return hashlib.blake2b(f"{start} {end}".encode(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a provider and how it ended: "ok", "fail", "unknown". who: the process. what: "lease", "release"."""

    at: float
    who: str
    what: str
    hosts: tuple[str, ...]
    ended: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """A partition's part of a committed batch: where it ran, the versions that it loaded and committed, a hash."""

    at: float
    query: str
    batch: int
    partition: int
    executor: str
    loaded: int
    committed: int
    content: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule. rule: its name above. at: seconds of the run."""

    rule: str
    at: float
    said: str

    def __str__(self) -> str:
        return f"{self.rule}, at {self.at:.1f} s: {self.said}"


@dataclass
class History:
    """Events of one run. sink: (at, query, batch, start, end, rows). broken: violations found during the run."""

    calls: list[Call] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    sink: list[tuple[float, str, int, int, int, str]] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    broken: list[Violation] = field(default_factory=list)
    decisions: int = 0
    restarts: int = 0

    def note(self, rule: str, at: float, said: str) -> None:
        if all((each.rule, each.said) != (rule, said) for each in self.broken):
            self.broken.append(Violation(rule, at, said))


@dataclass(frozen=True, slots=True)
class Ledgers:
    """State at the end (`at` seconds), by application: ended and active hosts of the ledger, and hosts `listed`."""

    ended: Mapping[str, frozenset[str]]
    active: Mapping[str, frozenset[str]]
    listed: Mapping[str, frozenset[str]]
    at: float = math.inf


def checked(history: History, ledgers: Ledgers | None = None) -> tuple[Violation, ...]:
    found = [*history.broken]
    for rule in (sink_follows, one_content, versions_follow):
        found += rule(history)
    if ledgers is not None:
        found += leases_kept(history, ledgers)
    return tuple(found)


def sink_follows(history: History) -> Iterator[Violation]:
    written: dict[tuple[str, int], tuple[int, int, str]] = {}
    for at, query, batch, start, end, rows in history.sink:
        if rows != row_of(start, end):
            yield Violation("sink", at, f"rows of batch {batch} of {query} are not those of records {start} to {end}")
        known = written.setdefault((query, batch), (start, end, rows))
        if known != (start, end, rows):
            yield Violation("sink", at, f"batch {batch} of {query} was written for {known[:2]} and for {(start, end)}")
        before = written.get((query, batch - 1))
        if start != (0 if before is None else before[1]):
            yield Violation("sink", at, f"batch {batch} of {query} begins at record {start}, not where the last one ended")


def one_content(history: History) -> Iterator[Violation]:
    known: dict[tuple[str, int, int], str] = {}
    for each in history.commits:
        key = (each.query, each.partition, each.committed)
        if known.setdefault(key, each.content) != each.content:
            said = f"version {each.committed} of partition {each.partition} of {each.query} has two contents"
            yield Violation("content", each.at, said)


def versions_follow(history: History) -> Iterator[Violation]:
    for each in history.commits:
        if each.loaded != each.committed - 1 or each.committed != each.batch + 1:
            said = f"batch {each.batch} of {each.query} loaded version {each.loaded} of partition {each.partition}"
            yield Violation("versions", each.at, f"{said} and committed version {each.committed}")


def leases_kept(history: History, ledgers: Ledgers) -> Iterator[Violation]:
    asked: dict[str, dict[str, float]] = defaultdict(dict)
    for call in history.calls:
        if call.what == "lease" and call.who in ledgers.active and call.at <= ledgers.at:
            for host in call.hosts:
                asked[call.who].setdefault(host, call.at)
    for who, active in ledgers.active.items():
        for host, at in asked[who].items():
            if host not in active and host not in ledgers.ended[who]:
                yield Violation("leases", at, f"{host} was requested by {who}, and no ledger knows it")
        for host in sorted(ledgers.listed[who] - active):
            yield Violation("leases", asked[who].get(host, 0.0), f"{host} of {who} is an orphan at the end")
        for host in sorted(active - ledgers.listed[who]):
            yield Violation("leases", asked[who].get(host, 0.0), f"{host} of {who} is active in the ledger, and gone")
