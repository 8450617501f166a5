"""YAML document of a manager process: the arbiter of shared hosts, or a region manager.

    arbiter:                               arbiter:                            region:
      name: demo                             name: demo                          name: east
      listen: 127.0.0.1:8471                 token_file: token                   arbiter: http://127.0.0.1:8471
      machines: {small: 3}                   regions: {east: {capacity: 4}}      token_file: token
                                             host_types:                         host_types: {small: {cores: 1}}
                                               small: {cores: 1, region: east}   hosts: {directory: hosts/east}

Paths are relative to the document. Errors name file, line and field.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from elastream.clouds.arbiter_link import is_this_machine
from elastream.clouds.pool import local_cloud
from elastream.clouds.provider import HOST_TYPES
from elastream.core.hosts import HostType
from elastream.documents.located import Located, read_yaml
from elastream.documents.schema import Duration, HostTypeKeys, Keys, Names, declared_types
from elastream.documents.user_code import near
from elastream.errors import InputError
from elastream.policies.e2df.regions import RegionRules
from elastream.pool.arbiter import MAX_HOSTS_OF_MEMBER, MAX_PRIORITY, Entitlement
from elastream.sharing.messages import Offer
from elastream.sharing.rules import ArbiterRules, RegionFacts


def _host_and_port(written: object) -> tuple[str, int]:
    host, _, port = str(written).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{written!r} is not an address and a port such as '127.0.0.1:8470'")
    return host.strip("[]"), int(port)


Listen = Annotated[tuple[str, int], BeforeValidator(_host_and_port)]  # (host, port)


MIN_TOKEN_LENGTH = 16  # shorter ones can be guessed
FORM = "a manager's document is a mapping with one of the keys 'arbiter' and 'region'"
DEFAULT_MAX_HOSTS = 100  # of an application, if the document does not limit its regions


@dataclass(frozen=True)
class ArbiterSetting:
    offer: Offer
    machines: Mapping[str, str]  # kind of each fixed machine; none if regions have the hosts
    regions: tuple[str, ...]
    rules: ArbiterRules
    entitlements: Mapping[str, Entitlement]  # applications that may join; none: any may join with its own values
    host: str
    port: int
    journal: Path
    period: float
    token: str | None = None  # None for no token
    certificate: Path | None = None  # TLS certificate; None for plain HTTP
    key: Path | None = None  # private key of the certificate


@dataclass(frozen=True)
class RegionSetting:
    name: str
    arbiter: str
    token: str | None
    journal: Path
    period: float
    rules: RegionRules
    types: tuple[HostType, ...]
    hosts: Path
    certificate: Path | None = None


def _fill_empty(value: object) -> object:
    return {name: {} if below is None else below for name, below in value.items()} if isinstance(value, Mapping) else value


Positive = Annotated[Duration, Field(gt=0)]


class RegionFactsKeys(Keys):
    price: float = Field(0.0, ge=0)
    latency: Duration = 0.0
    capacity: float = Field(math.inf, ge=0, multiple_of=1)


class ApplicationKeys(Keys):
    priority: float = Field(1.0, gt=0, le=MAX_PRIORITY)
    minimum: int = Field(1, ge=1, le=MAX_HOSTS_OF_MEMBER)


class ArbiterKeys(Keys):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    listen: Listen = ("127.0.0.1", 8471)
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    journal: str | None = None
    machines: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    regions: Annotated[dict[str, RegionFactsKeys], BeforeValidator(_fill_empty)] = Field(default_factory=dict)
    host_types: dict[str, HostTypeKeys] = Field(default_factory=dict)
    latency: dict[str, dict[str, Duration]] = Field(default_factory=dict)
    applications: Annotated[dict[str, ApplicationKeys], BeforeValidator(_fill_empty)] = Field(default_factory=dict)
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
    def _some_machines(cls, value: Mapping[str, int]) -> Mapping[str, int]:
        if not sum(value.values()):
            raise ValueError("there are no machines")
        return {kind: count for kind, count in value.items() if count}

    @field_validator("prefer")
    @classmethod
    def _known_regions(cls, value: list[str], info: Any) -> list[str]:
        regions = info.data.get("regions", {})
        if unknown := [name for name in value if name not in regions]:
            raise ValueError(f"there is no region {unknown[0]!r} (there are: {', '.join(regions)})")
        return value

    @model_validator(mode="after")
    def _one_supply(self) -> "ArbiterKeys":
        if bool(self.machines) == bool(self.regions):
            raise ValueError("an arbiter has either machines of its own ('machines') or regions that have them ('regions')")
        if self.regions and not self.host_types:
            raise ValueError("an arbiter of regions must know the host types that they have ('host_types')")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS needs both: a certificate ('certificate') and its key ('key')")
        if not is_this_machine(self.listen[0]) and None in (self.token_file, self.certificate):
            raise ValueError(
                f"it listens at {self.listen[0]}, where other machines reach it: that needs a token ('token_file') and TLS"
                " ('certificate', 'key')"
            )
        return self


# keys that are rules under the same name
RULE_KEYS = {each.name for each in fields(ArbiterRules)} & ArbiterKeys.model_fields.keys() - {"prefer", "regions"}


class HostsKeys(Keys):
    directory: str


class RegionKeys(Keys):
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
    arbiter: ArbiterKeys | None = None
    region: RegionKeys | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "ManagerKeys":
        if (self.arbiter is None) == (self.region is None):
            raise ValueError(FORM)
        return self


def load_manager(path: Path) -> ArbiterSetting | RegionSetting:
    """Return the settings in the document `path`.

    Raises:
        InputError: The file cannot be read.
        DataflowError: A value is invalid; its file, line and field are named.
    """
    file = read_yaml(path, FORM)
    keys: ManagerKeys = file.validate(ManagerKeys)
    if keys.arbiter is not None:
        return _arbiter(file, keys.arbiter, path.parent)
    assert keys.region is not None
    return _region(file, keys.region, path.parent)


def _arbiter(file: Located, keys: ArbiterKeys, folder: Path) -> ArbiterSetting:
    own_types = declared_types(file, ("arbiter", "host_types"), keys.host_types)
    if keys.machines:
        types = {**HOST_TYPES, **own_types}
        for name in keys.machines:
            if name not in types:
                raise file.error(("arbiter", "machines", name), f"there is no host type {name!r}{near(name, types)}")
        kinds = tuple(types[name] for name in keys.machines)
        max_hosts = sum(keys.machines.values())
    else:
        for name, kind in own_types.items():
            if kind.region not in keys.regions:
                regions = ", ".join(keys.regions)
                raise file.error(
                    ("arbiter", "host_types", name), f"there is no region {kind.region!r} (there are: {regions})"
                )
        kinds = tuple(own_types.values())
        max_hosts = int(min(sum(each.capacity for each in keys.regions.values()), keys.max_hosts, DEFAULT_MAX_HOSTS))
    offer = Offer(keys.name, kinds, max_hosts, keys.latency)
    with file.at(("arbiter", "machines" if keys.machines else "regions")):
        local_cloud(offer)
    names = [kind for kind, count in keys.machines.items() for _ in range(count)]
    return ArbiterSetting(
        offer,
        {f"m{number}": kind for number, kind in enumerate(names, start=1)},
        tuple(keys.regions),
        ArbiterRules(
            **{rule: value for rule, value in keys if rule in RULE_KEYS},
            prefer=tuple(keys.prefer),
            regions={name: RegionFacts(**dict(each)) for name, each in keys.regions.items()},
        ),
        {name: Entitlement(**dict(each)) for name, each in keys.applications.items()},
        *keys.listen,
        folder / (keys.journal or f"{keys.name}.journal"),
        keys.period,
        _token(file, "arbiter", keys.token_file, folder),
        _existing_file(file, "arbiter", "certificate", keys.certificate, folder),
        _existing_file(file, "arbiter", "key", keys.key, folder),
    )


def _region(file: Located, keys: RegionKeys, folder: Path) -> RegionSetting:
    keys_by_type = {name: each.model_copy(update={"region": keys.name}) for name, each in keys.host_types.items()}
    types = declared_types(file, ("region", "host_types"), keys_by_type)
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
        _existing_file(file, "region", "certificate", keys.certificate, folder),
    )


def _token(file: Located, whose: str, written: str | None, folder: Path) -> str | None:
    if written is None:
        return None
    path = folder / written
    with file.at((whose, "token_file")):
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InputError(f"{path} cannot be read: {reason}") from None
        if len(token) < MIN_TOKEN_LENGTH or not token.isascii():
            raise InputError(f"the token in {path} must have at least {MIN_TOKEN_LENGTH} characters, all of them ASCII")
        return token


def _existing_file(file: Located, whose: str, key: str, written: str | None, folder: Path) -> Path | None:
    if written is None:
        return None
    path = folder / written
    if not path.is_file():
        raise file.error((whose, key), f"there is no file {path}")
    return path
