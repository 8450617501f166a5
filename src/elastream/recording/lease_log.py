"""Leases of a run on disk: requested before a provider is called, ended after it has confirmed.

A killed driver leaves hosts behind if its provider outlives it. The next driver adopts or releases them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from elastream.core.hosts import Billing, EndedLeases, HostState, HostType, Lease
from elastream.errors import InputError
from elastream.recording.lines import Lines

# Lines of the file after which it is rewritten, once leases were forgotten.
MAX_LINES = 1_000


#   on disk            listed by the provider      what resuming does
#   requested          yes, on its way or up       adopted: the lease goes on
#   requested          yes, gone                   written off: lost, and forgotten there
#   requested          no                          written off: lost when the driver was last seen
#   ended              yes                         released once more
#   ended              no                          nothing: it stays in the ledger
#   (not there)        yes                         an orphan: released, and the ledger says so
class LeaseLog:
    """Leases in the file `path`, a JSON line for each request and each end; without a path in memory only.

    Raises:
        JournalProblem: If it cannot be read or written; nothing may be leased then.
        InputError: For damage.
    """

    def __init__(self, path: Path | None = None, *, max_lines: int = MAX_LINES) -> None:
        self._max_lines = max_lines
        self._lines = None if path is None else Lines(path, "the leases")
        self._earlier, self._past = ({}, EndedLeases()) if self._lines is None else _read(self._lines)
        self._zero = 0.0

    def counted_from(self, epoch: float) -> "LeaseLog":
        """Set the epoch second of the caller's time 0, so that the file has epoch seconds; return the log.

        Needed by successive drivers with clocks of their own.
        """
        self._zero = epoch
        return self

    @property
    def earlier(self) -> Mapping[str, Lease]:
        return {host: _shifted(lease, -self._zero) for host, lease in self._earlier.items()}

    @property
    def past(self) -> EndedLeases:
        return self._past

    def requested(self, host: str, type: HostType, at: float) -> None:
        if self._lines is not None:
            self._lines.append(self._requested(host, type, at))

    def ended(self, lease: Lease, why: str = "") -> None:
        if self._lines is not None:
            self._lines.append(self._ended(lease, why))

    def forget(self, past: EndedLeases, remaining: Iterable[Lease]) -> None:
        """Reduce other leases than `remaining` to the sums `past`; rewrite the file once it is long."""
        self._past = past
        if self._lines is not None and self._lines.count > self._max_lines:
            lines = [{"past": asdict(past)}]
            for lease in remaining:
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
        if self._lines is not None:
            self._lines.close()


def _read(lines: Lines) -> tuple[dict[str, Lease], EndedLeases]:
    leases: dict[str, Lease] = {}
    past = EndedLeases()
    for number, fields in enumerate(lines.read(), start=1):
        try:
            if "past" in fields:
                past = EndedLeases(**fields["past"])
                continue
            host, state, at = str(fields["host"]), HostState(fields["state"]), float(fields["time"])
            if state is HostState.REQUESTED:
                kind = fields["type"]
                leases[host] = Lease(host, HostType(**{**kind, "billing": Billing(**kind["billing"])}), at)
            elif leases[host].active:
                leases[host] = replace(leases[host].to(state, at), note=str(fields.get("why", "")))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{lines.path}, line {number}: not an entry of a lease ({error})") from error
    return leases, past


def _shifted(lease: Lease, seconds: float) -> Lease:
    until = None if lease.until is None else lease.until + seconds
    history = tuple((at + seconds, state) for at, state in lease.history)
    return replace(lease, since=lease.since + seconds, until=until, history=history)
