"""Hosts as files in a directory: for trying managers out, and for sites whose own scripts start and stop machines.

A lease is a file `h1.json` with the host's name and type; a release takes it away. Whoever runs the machines watches the
directory, and may say in `h1.status.json` how a host is: {"up": true, "cpu": 0.4, "replicas": 1}. Without that, it is up at
once, and how used it is stays unknown. `history.log` has a line for each lease and release that was done.
"""

import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastream.clouds.provider import HostStatus
from elastream.model.cloud import HostType
from elastream.model.errors import CloudError, EnvironmentProblem, InputError

__all__ = ["HostDirectory"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What a host may be called: its name becomes a file's."""


class HostDirectory:
    """A `HostProvider` over the directory `path`, which is made where it is not there."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._problem(error) from error

    def hosts(self) -> Sequence[HostStatus]:
        """Leased hosts in the order of their names; InputError, naming the file, for one that is damaged."""
        found = []
        for file in sorted(self.path.glob("*.json")):
            if file.name.endswith(".status.json"):
                continue
            lease, status = self._read(file), self._read(file.with_name(f"{file.stem}.status.json"))
            if lease is None:
                continue  # it was released a moment ago
            try:
                cpu = (status or {}).get("cpu")
                found.append(
                    HostStatus(
                        file.stem,
                        str(lease["type"]),
                        bool((status or {}).get("up", True)),
                        math.nan if cpu is None else float(cpu),
                        int((status or {}).get("replicas", 0)),
                    )
                )
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{file} or its status says nothing of a host: {error!r}") from None
        return found

    def lease(self, host: str, kind: HostType) -> None:
        """Make the file of `host`, unless it is there."""
        file = self._file(host)
        try:
            # Whoever watches must never see half a file: it is written aside and gets its name at once.
            fresh = self.path / f".{host}.new"
            fresh.write_text(json.dumps({"host": host, "type": kind.name, "region": kind.region}), encoding="utf-8")
            try:
                os.link(fresh, file)
            except FileExistsError:
                return
            finally:
                fresh.unlink()
            self._log(f"lease {host}")
        except OSError as error:
            raise self._problem(error) from error

    def release(self, host: str) -> None:
        """Take the file of `host` away, if it is there."""
        file = self._file(host)
        try:
            file.with_name(f"{host}.status.json").unlink(missing_ok=True)
            if file.exists():
                file.unlink()
                self._log(f"release {host}")
        except OSError as error:
            raise self._problem(error) from error

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
