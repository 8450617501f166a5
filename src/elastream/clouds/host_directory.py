"""Hosts as files in a directory: for trying managers out, and for sites whose own scripts start and stop machines.

A lease is a file `h1.json` with the host's name and type; a release takes it away. The operator of the machines watches
the directory, and may report the state of a host in `h1.status.json`: {"up": true, "cpu": 0.4, "replicas": 1}. Without
that file, it is up at once, and its use is unknown. `history.log` has a line for each lease and release.
"""

import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastream.clouds.provider import HostStatus, Measured, Phase, Provider, Terms
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem, InputError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What a host may be called: its name becomes a file's."""
STATUS: Mapping[str, Any] = {"up": bool, "cpu": int | float, "replicas": int, "address": str}
"""What a status file may say, and as what."""


class HostDirectory(Provider):
    """A `Provider` over the directory `path`, which is made where it is not there. types: what it is known to have."""

    def __init__(self, path: Path | str, types: Sequence[HostType] = ()) -> None:
        self.path = Path(path)
        self.terms = Terms(tuple(types), max_hosts=sys.maxsize)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._problem(error) from error

    def hosts(self) -> Mapping[str, HostStatus]:
        """Leased hosts in the order of their names; InputError, naming the file, for one that is damaged."""
        found = {}
        for name, lease, status in self._records():
            phase = Phase.UP if status.get("up", True) else Phase.STARTING
            found[name] = HostStatus(str(lease["type"]), phase, address=str(status.get("address", "")))
        return found

    def measure(self) -> Mapping[str, Measured]:
        """What status files say of use; InputError, naming the file, for one that is damaged."""
        found = {}
        for name, _, status in self._records():
            cpu = status.get("cpu")
            found[name] = Measured(cpu=math.nan if cpu is None else cpu, replicas=status.get("replicas", 0))
        return found

    def lease(self, hosts: Mapping[str, HostType]) -> None:
        """Make the file of each host, unless it is there."""
        files = {name: self._file(name) for name in hosts}
        try:
            for name, kind in hosts.items():
                # A watcher must never see a partial file: it is written under another name and renamed.
                fresh = self.path / f".{name}.new"
                fresh.write_text(json.dumps({"host": name, "type": kind.name, "region": kind.region}), encoding="utf-8")
                try:
                    os.link(fresh, files[name])
                except FileExistsError:
                    continue
                finally:
                    fresh.unlink()
                self._log(f"lease {name}")
        except OSError as error:
            raise self._problem(error) from error

    def release(self, hosts: Collection[str]) -> None:
        """Take the file of each host away, if it is there."""
        try:
            for name in filter(NAME.fullmatch, hosts):
                file = self.path / f"{name}.json"
                file.with_name(f"{name}.status.json").unlink(missing_ok=True)
                if file.exists():
                    file.unlink()
                    self._log(f"release {name}")
        except OSError as error:
            raise self._problem(error) from error

    def close(self) -> None:
        """Do nothing: hosts outlive this process, until they are released."""

    def _records(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        """(name, lease, status) of each host, checked."""
        for file in sorted(self.path.glob("*.json")):
            if file.name.endswith(".status.json"):
                continue
            lease, status = self._read(file), self._read(file.with_name(f"{file.stem}.status.json")) or {}
            if lease is None:
                continue  # it was released a moment ago
            if not isinstance(lease.get("type"), str):
                raise InputError(f"{file} does not name the host's type: 'type' is {lease.get('type')!r}")
            for key, wanted in STATUS.items():
                if (value := status.get(key)) is not None and not isinstance(value, wanted):
                    raise InputError(f"{self.path / file.stem}.status.json: {key} is {value!r}, which is no {wanted}")
            yield file.stem, lease, status

    def _file(self, host: str) -> Path:
        if not NAME.fullmatch(host):
            raise CloudError(f"{host!r} cannot be the name of a host in {self.path}: it has more than letters and digits")
        return self.path / f"{host}.json"

    def _read(self, file: Path) -> dict[str, Any] | None:
        try:
            fields = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._problem(error) from error
        except ValueError as error:
            raise InputError(f"{file} is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise InputError(f"{file} is no JSON object")
        return fields

    def _log(self, what: str) -> None:
        with (self.path / "history.log").open("a", encoding="utf-8") as file:
            file.write(what + "\n")

    def _problem(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"the hosts in {self.path} cannot be read or written: {error.strerror or error}")
