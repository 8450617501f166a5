"""The YAML document of a manager process: the arbiter of shared hosts, or the manager of a region.

    arbiter:                               arbiter:                            region:
      name: demo                             name: demo                          name: east
      listen: 127.0.0.1:8471                 token_file: token                   arbiter: http://127.0.0.1:8471
      machines: {small: 3}                   regions: {east: {capacity: 4}}      token_file: token
                                             host_types:                         host_types: {small: {cores: 1}}
                                               small: {cores: 1, region: east}   hosts: {directory: hosts/east}

Paths are relative to the document. Every error names file, line and field in one sentence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from elastream.clouds.arbiter_link import of_this_machine
from elastream.clouds.local.local import HOST_TYPES
from elastream.clouds.pool import local_of
from elastream.core.hosts import HostType
from elastream.documents.located import Located, read_yaml
from elastream.documents.schema import Duration, HostTypeKeys, Keys, Names, declared_types
from elastream.documents.user_code import near
from elastream.errors import InputError
from elastream.policies.e2df.regions import RegionRules
from elastream.pool.arbiter import HIGHEST_PRIORITY, MOST_ASKED, Entitlement
from elastream.sharing.messages import Offer
from elastream.sharing.rules import ArbiterRules, RegionFacts


def _host_and_port(written: object) -> tuple[str, int]:
    """`127.0.0.1:8470` or `[::1]:8470` as (host, port)."""
    host, _, port = str(written).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{written!r} is not an address and a port such as '127.0.0.1:8470'")
    return host.strip("[]"), int(port)


Listen = Annotated[tuple[str, int], BeforeValidator(_host_and_port)]
"""Where a service listens: (host, port)."""


SHORTEST_TOKEN = 16
"""Fewest characters of a token; shorter ones can be guessed."""
FORM = "a manager's document is a mapping with one of the keys 'arbiter' and 'region'"
MOST_HOSTS = 100
"""Hosts that an application may have where the document sets no bound for its regions."""


@dataclass(frozen=True)
class ArbiterSetting:
    """Settings of an arbiter: listen address, token, hosts and rules. token: None for none. certificate, key: its files for
    TLS; None for none.

    machines: kind of each fixed machine by name; none where regions have the hosts. standings: applications that may
    join, with priority and minimum; none: any may join, with its own.
    """

    offer: Offer
    machines: Mapping[str, str]
    regions: tuple[str, ...]
    rules: ArbiterRules
    standings: Mapping[str, Entitlement]
    host: str
    port: int
    journal: Path
    period: float
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class RegionSetting:
    """Settings of a region manager: its arbiter, host types, and the directory where hosts are leased.
    certificate: by which the arbiter is known; None: those that this machine trusts."""

    name: str
    arbiter: str
    token: str | None
    journal: Path
    period: float
    rules: RegionRules
    types: tuple[HostType, ...]
    hosts: Path
    certificate: Path | None = None


def _mapped(value: object) -> object:
    """Read a name without a value as one without parameters."""
    return {name: {} if below is None else below for name, below in value.items()} if isinstance(value, Mapping) else value


Positive = Annotated[Duration, Field(gt=0)]


class RegionFactsKeys(Keys):
    """Keys of a region: price a second, latency, capacity in hosts."""

    price: float = Field(0.0, ge=0)
    latency: Duration = 0.0
    capacity: float = Field(math.inf, ge=0, multiple_of=1)


class ApplicationKeys(Keys):
    """An application: its weight, and hosts that are guaranteed to it."""

    priority: float = Field(1.0, gt=0, le=HIGHEST_PRIORITY)
    minimum: int = Field(1, ge=1, le=MOST_ASKED)


class ArbiterKeys(Keys):
    """Keys of an arbiter."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    listen: Listen = ("127.0.0.1", 8471)
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    journal: str | None = None
    machines: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    regions: Annotated[dict[str, RegionFactsKeys], BeforeValidator(_mapped)] = Field(default_factory=dict)
    host_types: dict[str, HostTypeKeys] = Field(default_factory=dict)
    latency: dict[str, dict[str, Duration]] = Field(default_factory=dict)
    applications: Annotated[dict[str, ApplicationKeys], BeforeValidator(_mapped)] = Field(default_factory=dict)
    period: Positive = 0.5
    patience: Positive = 45.0
    silence: Positive = 15.0
    settle: Annotated[Duration, Field(ge=0)] = 15.0
    absence: Positive = 180.0
    prefer: Names = Field(default_factory=list)
    max_price: float = Field(math.inf, ge=0)
    max_latency: Duration = math.inf
    max_hosts: float = Field(math.inf, ge=0, multiple_of=1)
    min_hosts: int = Field(0, ge=0)
    consolidate_below: float | None = Field(None, ge=0, le=1)

    @field_validator("machines")
    @classmethod
    def _some(cls, value: Mapping[str, int]) -> Mapping[str, int]:
        if not sum(value.values()):
            raise ValueError("there are no machines")
        return {kind: count for kind, count in value.items() if count}

    @field_validator("prefer")
    @classmethod
    def _known(cls, value: list[str], info: Any) -> list[str]:
        known = info.data.get("regions", {})
        if unknown := [name for name in value if name not in known]:
            raise ValueError(f"there is no region {unknown[0]!r} (there are: {', '.join(known)})")
        return value

    @model_validator(mode="after")
    def _one_supply(self) -> "ArbiterKeys":
        if bool(self.machines) == bool(self.regions):
            raise ValueError("an arbiter has either machines of its own ('machines') or regions that have them ('regions')")
        if self.regions and not self.host_types:
            raise ValueError("an arbiter of regions must know the host types that they have ('host_types')")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS needs both: a certificate ('certificate') and its key ('key')")
        if not of_this_machine(self.listen[0]) and None in (self.token_file, self.certificate):
            raise ValueError(
                f"it listens at {self.listen[0]}, where other machines reach it: that needs a token ('token_file') and TLS"
                " ('certificate', 'key')"
            )
        return self


RULES = {each.name for each in fields(ArbiterRules)} & ArbiterKeys.model_fields.keys() - {"prefer", "regions"}
"""Keys of an arbiter that are its rules as they are written."""


class HostsKeys(Keys):
    """Where a region's hosts are leased."""

    directory: str


class RegionKeys(Keys):
    """Keys of a region manager."""

    name: Annotated[str, Field(min_length=1)]
    arbiter: str
    token_file: str | None = None
    certificate: str | None = None
    journal: str | None = None
    period: Positive = 30.0
    spare: int = Field(5, ge=0)
    low: float = Field(0.1, ge=0, le=1)
    settle: Positive = 60.0
    replica_cores: float = Field(0.0, ge=0)
    host_types: Annotated[dict[str, HostTypeKeys], Field(min_length=1)]
    hosts: HostsKeys

    @field_validator("arbiter")
    @classmethod
    def _url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{value!r} is not an address such as 'http://127.0.0.1:8471'")
        return value.rstrip("/")


class ManagerKeys(Keys):
    """The document: an arbiter or a region."""

    arbiter: ArbiterKeys | None = None
    region: RegionKeys | None = None

    @model_validator(mode="after")
    def _one(self) -> "ManagerKeys":
        if (self.arbiter is None) == (self.region is None):
            raise ValueError(FORM)
        return self


def load_manager(path: Path) -> ArbiterSetting | RegionSetting:
    """The manager that the document `path` describes.

    Raises InputError if it cannot be read, DataflowError with file, line and field for errors in it.
    """
    file = read_yaml(path, FORM)
    keys: ManagerKeys = file.validate(ManagerKeys)
    if keys.arbiter is not None:
        return _arbiter(file, keys.arbiter, path.parent)
    assert keys.region is not None
    return _region(file, keys.region, path.parent)


def _arbiter(file: Located, keys: ArbiterKeys, folder: Path) -> ArbiterSetting:
    own = declared_types(file, ("arbiter", "host_types"), keys.host_types)
    if keys.machines:
        known = {**HOST_TYPES, **own}
        for name in keys.machines:
            if name not in known:
                raise file.error(("arbiter", "machines", name), f"there is no host type {name!r}{near(name, known)}")
        kinds = tuple(known[name] for name in keys.machines)
        most = sum(keys.machines.values())
    else:
        for name, kind in own.items():
            if kind.region not in keys.regions:
                known_regions = ", ".join(keys.regions)
                raise file.error(
                    ("arbiter", "host_types", name), f"there is no region {kind.region!r} (there are: {known_regions})"
                )
        kinds = tuple(own.values())
        most = int(min(sum(each.capacity for each in keys.regions.values()), keys.max_hosts, MOST_HOSTS))
    offer = Offer(keys.name, kinds, most, keys.latency)
    with file.at(("arbiter", "machines" if keys.machines else "regions")):
        local_of(offer)
    names = [kind for kind, count in keys.machines.items() for _ in range(count)]
    return ArbiterSetting(
        offer,
        {f"m{number}": kind for number, kind in enumerate(names, start=1)},
        tuple(keys.regions),
        ArbiterRules(
            **{rule: value for rule, value in keys if rule in RULES},
            prefer=tuple(keys.prefer),
            regions={name: RegionFacts(**dict(each)) for name, each in keys.regions.items()},
        ),
        {name: Entitlement(**dict(each)) for name, each in keys.applications.items()},
        *keys.listen,
        folder / (keys.journal or f"{keys.name}.journal"),
        keys.period,
        _token(file, "arbiter", keys.token_file, folder),
        _there(file, "arbiter", "certificate", keys.certificate, folder),
        _there(file, "arbiter", "key", keys.key, folder),
    )


def _region(file: Located, keys: RegionKeys, folder: Path) -> RegionSetting:
    placed = {name: each.model_copy(update={"region": keys.name}) for name, each in keys.host_types.items()}
    types = declared_types(file, ("region", "host_types"), placed)
    enough = tuple(kind for kind in types.values() if kind.cores >= keys.replica_cores)
    if not enough:
        raise file.error(("region", "replica_cores"), f"no host type has {keys.replica_cores:g} cores for a replica")
    return RegionSetting(
        keys.name,
        keys.arbiter,
        _token(file, "region", keys.token_file, folder),
        folder / (keys.journal or f"{keys.name}.journal"),
        keys.period,
        RegionRules(keys.spare, keys.low, keys.settle),
        enough,
        folder / keys.hosts.directory,
        _there(file, "region", "certificate", keys.certificate, folder),
    )


def _token(file: Located, whose: str, written: str | None, folder: Path) -> str | None:
    """The token in the file `written`, apart from the document, so that documents can be shared without it."""
    if written is None:
        return None
    path = folder / written
    with file.at((whose, "token_file")):
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"{path} cannot be read: {reason}") from None
        if len(token) < SHORTEST_TOKEN or not token.isascii():
            raise InputError(f"the token in {path} must have at least {SHORTEST_TOKEN} characters, all of them ASCII")
        return token


def _there(file: Located, whose: str, key: str, written: str | None, folder: Path) -> Path | None:
    """The file `written`, which is read by what is started with it."""
    if written is None:
        return None
    path = folder / written
    if not path.is_file():
        raise file.error((whose, key), f"there is no file {path}")
    return path
