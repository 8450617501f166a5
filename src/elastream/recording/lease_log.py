"""The leases of a run on disk: requested before a provider is called, ended once it has said so.

A driver that was killed leaves hosts behind where its provider outlives it. The next one reads here which are its own:

    on disk            listed by the provider      what resuming does
    requested          yes, on its way or up       adopted: the lease goes on
    requested          yes, gone                   written off: lost, and forgotten there
    requested          no                          written off: lost when the driver was last seen
    ended              yes                         released once more
    ended              no                          nothing: it stays in the ledger
    (not there)        yes                         an orphan: released, and the ledger says so
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from elastream.core.hosts import Billing, EndedLeases, HostState, HostType, Lease
from elastream.errors import InputError
from elastream.recording.lines import Lines

LONGEST = 1_000
"""Lines of the file after which it is written anew, once leases were forgotten."""


class LeaseLog:
    """Leases in the file `path`, a JSON line for each request and each end; without a path in memory only.

    Raises JournalProblem where it cannot be read or written: nothing may be leased then. Raises InputError for damage.
    """

    def __init__(self, path: Path | None = None, *, max_lines: int = LONGEST) -> None:
        self._max_lines = max_lines
        self._lines = None if path is None else Lines(path, "the leases")
        self._earlier, self._past = ({}, EndedLeases()) if self._lines is None else _read(self._lines)
        self._zero = 0.0

    def counted_from(self, epoch: float) -> "LeaseLog":
        """The same for somebody whose time 0 is epoch second `epoch`: on disk are epoch seconds then.

        So is the log of those who come one after the other, each with a clock of its own; a run's clock goes on.
        """
        self._zero = epoch
        return self

    @property
    def earlier(self) -> Mapping[str, Lease]:
        """The leases as an earlier driver left them, by host."""
        return {host: _shifted(lease, -self._zero) for host, lease in self._earlier.items()}

    @property
    def past(self) -> EndedLeases:
        """What leases came to that are not kept one by one."""
        return self._past

    def requested(self, host: str, type: HostType, at: float) -> None:
        """Note a request; it is on disk when this returns."""
        if self._lines is not None:
            self._lines.append(self._requested(host, type, at))

    def ended(self, lease: Lease, why: str = "") -> None:
        """Note the end of a lease."""
        if self._lines is not None:
            self._lines.append(self._ended(lease, why))

    def forget(self, past: EndedLeases, kept: Iterable[Lease]) -> None:
        """Keep only the sums `past` of leases that are not `kept`; the file is written anew once it is long."""
        self._past = past
        if self._lines is not None and self._lines.count > self._max_lines:
            lines = [{"past": asdict(past)}]
            for lease in kept:
                lines.append(self._requested(lease.host, lease.type, lease.since))
                if not lease.active:
                    lines.append(self._ended(lease, lease.note))
            self._lines.replace(lines)

    def _requested(self, host: str, type: HostType, at: float) -> dict[str, Any]:
        return {"host": host, "state": HostState.REQUESTED.value, "time": at + self._zero, "type": asdict(type)}

    def _ended(self, lease: Lease, why: str) -> dict[str, Any]:
        until = None if lease.until is None else lease.until + self._zero
        return {"host": lease.host, "state": lease.state.value, "time": until, "why": why}

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._lines is not None:
            self._lines.close()


def _read(lines: Lines) -> tuple[dict[str, Lease], EndedLeases]:
    found: dict[str, Lease] = {}
    past = EndedLeases()
    for number, fields in enumerate(lines.read(), start=1):
        try:
            if "past" in fields:
                past = EndedLeases(**fields["past"])
                continue
            host, state, at = str(fields["host"]), HostState(fields["state"]), float(fields["time"])
            if state is HostState.REQUESTED:
                kind = fields["type"]
                found[host] = Lease(host, HostType(**{**kind, "billing": Billing(**kind["billing"])}), at)
            elif found[host].active:
                found[host] = replace(found[host].to(state, at), note=str(fields.get("why", "")))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{lines.path}, line {number}: not an entry of a lease ({error})") from error
    return found, past


def _shifted(lease: Lease, seconds: float) -> Lease:
    until = None if lease.until is None else lease.until + seconds
    history = tuple((at + seconds, state) for at, state in lease.history)
    return replace(lease, since=lease.since + seconds, until=until, history=history)
