"""Hosts as files in a directory, for trials and for sites whose scripts start and stop machines.

A lease is a file `h1.json`; a release removes it. The site's scripts may report a host in `h1.status.json`: {"up": true,
"cpu": 0.4, "replicas": 1}. Without that file, it is up. `history.log` lists leases and releases.
"""

import json
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastream.clouds.provider import HostStatus, HostUsage, Phase, Provider, ProviderOffer
from elastream.core.hosts import HostType
from elastream.errors import CloudError, EnvironmentProblem, InputError

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # a host's name becomes a file name
# types of the fields of a status file
STATUS_FIELDS: Mapping[str, Any] = {"up": bool, "cpu": int | float, "replicas": int, "address": str}


class HostDirectory(Provider):
    """Provider over the directory `path`, which is created if missing; `types` are its host types."""

    def __init__(self, path: Path | str, types: Sequence[HostType] = ()) -> None:
        self.path = Path(path)
        self.terms = ProviderOffer(tuple(types), max_hosts=sys.maxsize)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._problem(error) from error

    def hosts(self) -> Mapping[str, HostStatus]:
        hosts = {}
        for name, lease, status in self._records():
            phase = Phase.UP if status.get("up", True) else Phase.STARTING
            hosts[name] = HostStatus(str(lease["type"]), phase, address=str(status.get("address", "")))
        return hosts

    def measure(self) -> Mapping[str, HostUsage]:
        usage = {}
        for name, _, status in self._records():
            cpu = status.get("cpu")
            usage[name] = HostUsage(cpu=math.nan if cpu is None else cpu, replicas=status.get("replicas", 0))
        return usage

    def lease(self, hosts: Mapping[str, HostType]) -> None:
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
        try:
            for name in filter(NAME_PATTERN.fullmatch, hosts):
                file = self.path / f"{name}.json"
                file.with_name(f"{name}.status.json").unlink(missing_ok=True)
                if file.exists():
                    file.unlink()
                    self._log(f"release {name}")
        except OSError as error:
            raise self._problem(error) from error

    def close(self) -> None:
        """Do nothing: hosts outlive this process until they are released."""

    def _records(self) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
        for file in sorted(self.path.glob("*.json")):
            if file.name.endswith(".status.json"):
                continue
            lease, status = self._read(file), self._read(file.with_name(f"{file.stem}.status.json")) or {}
            if lease is None:
                continue  # it was released a moment ago
            if not isinstance(lease.get("type"), str):
                raise InputError(f"{file} does not name the host's type: 'type' is {lease.get('type')!r}")
            for key, type_ in STATUS_FIELDS.items():
                if (value := status.get(key)) is not None and not isinstance(value, type_):
                    raise InputError(f"{self.path / file.stem}.status.json: {key} is {value!r}, which is no {type_}")
            yield file.stem, lease, status

    def _file(self, host: str) -> Path:
        if not NAME_PATTERN.fullmatch(host):
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

    def _log(self, event: str) -> None:
        with (self.path / "history.log").open("a", encoding="utf-8") as file:
            file.write(event + "\n")

    def _problem(self, error: OSError) -> EnvironmentProblem:
        return EnvironmentProblem(f"the hosts in {self.path} cannot be read or written: {error.strerror or error}")
