"""A manager that is to run in a process of its own, written as YAML: an infrastructure manager, or the manager of a region.

    infrastructure:                        region:
      listen: 127.0.0.1:8470                 name: east
      token_file: token                      infrastructure: http://127.0.0.1:8470
      journal: infrastructure.journal        token_file: token
      regions:                               journal: east.journal
        east: {price: 0.1, capacity: 10}     host_types: {small: {cores: 1}}
        west: {latency: 40ms}                hosts: {directory: hosts/east}
      applications: {orders: {priority: 2}}
      prefer: east

Paths are relative to the document. Every error names file, line and field in one sentence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from elastream.documents.located import Located, read_yaml
from elastream.documents.schema import Duration, HostTypeKeys, Keys, Names
from elastream.model.cloud import HostType
from elastream.model.errors import ElastreamError
from elastream.planning.managers.infrastructure import InfrastructureRules, RegionFacts
from elastream.planning.managers.regions import RegionRules
from elastream.services.serving import Listen, host_and_port, read_token

__all__ = ["InfrastructureSetting", "RegionSetting", "load_manager"]

FORM = "a manager's document is a mapping with one of the keys 'infrastructure' and 'region'"


@dataclass(frozen=True)
class InfrastructureSetting:
    """An infrastructure manager to be: where it listens, whom it believes, what it grants."""

    address: str
    port: int
    token: str
    journal: Path
    period: float
    rules: InfrastructureRules
    regions: tuple[str, ...]
    applications: tuple[str, ...]


@dataclass(frozen=True)
class RegionSetting:
    """A region manager to be: whom it reports to, what it may lease, and the directory where hosts are leased."""

    name: str
    infrastructure: str
    token: str
    journal: Path
    period: float
    rules: RegionRules
    types: tuple[HostType, ...]
    hosts: Path


def _mapped(value: object) -> object:
    """A name with nothing below it is a name without parameters."""
    return {name: {} if below is None else below for name, below in value.items()} if isinstance(value, Mapping) else value


Positive = Annotated[Duration, Field(gt=0)]


class RegionFactsKeys(Keys):
    """What the infrastructure manager knows of a region: price a second, latency, hosts it can have."""

    price: float = Field(0.0, ge=0)
    latency: Duration = 0.0
    capacity: int | None = Field(None, ge=0)


class ApplicationKeys(Keys):
    """An application: its weight where free hosts are shared out."""

    priority: float = Field(1.0, gt=0)


class InfrastructureKeys(Keys):
    """What an infrastructure manager needs to know."""

    listen: Listen = "127.0.0.1:8470"
    token_file: str
    journal: str
    period: Positive = 60.0
    patience: Positive = 120.0
    silence: Positive = 180.0
    regions: Annotated[dict[str, RegionFactsKeys], BeforeValidator(_mapped), Field(min_length=1)]
    applications: Annotated[dict[str, ApplicationKeys], BeforeValidator(_mapped), Field(min_length=1)]
    prefer: Names = Field(default_factory=list)
    max_price: float | None = Field(None, ge=0)
    max_latency: Duration | None = None
    max_hosts: int | None = Field(None, ge=0)
    min_hosts: int = Field(1, ge=0)
    consolidate_below: float | None = Field(None, ge=0, le=1)

    @field_validator("prefer")
    @classmethod
    def _known(cls, value: list[str], info: Any) -> list[str]:
        known = info.data.get("regions", {})
        if unknown := [name for name in value if known and name not in known]:
            raise ValueError(f"there is no region {unknown[0]!r} (there are: {', '.join(known)})")
        return value


class HostsKeys(Keys):
    """Where a region's hosts are leased."""

    directory: str


class RegionKeys(Keys):
    """What a region manager needs to know."""

    name: Annotated[str, Field(min_length=1)]
    infrastructure: str
    token_file: str
    journal: str
    period: Positive = 30.0
    spare: int = Field(5, ge=0)
    low: float = Field(0.1, ge=0, le=1)
    settle: Positive = 60.0
    replica_cores: float = Field(0.0, ge=0)
    host_types: Annotated[dict[str, HostTypeKeys], Field(min_length=1)]
    hosts: HostsKeys

    @field_validator("infrastructure")
    @classmethod
    def _url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{value!r} is not an address such as 'http://127.0.0.1:8470'")
        return value.rstrip("/")


class ManagerKeys(Keys):
    """A whole document: one of the two."""

    infrastructure: InfrastructureKeys | None = None
    region: RegionKeys | None = None

    @model_validator(mode="after")
    def _one(self) -> "ManagerKeys":
        if (self.infrastructure is None) == (self.region is None):
            raise ValueError(FORM)
        return self


def load_manager(path: Path) -> InfrastructureSetting | RegionSetting:
    """The manager that the document `path` describes; raises an ElastreamError for what is wrong with it."""
    file = read_yaml(path, FORM)
    keys: ManagerKeys = file.validate(ManagerKeys)
    folder = path.parent
    if keys.infrastructure is not None:
        return _infrastructure(file, keys.infrastructure, folder)
    assert keys.region is not None
    return _region(file, keys.region, folder)


def _infrastructure(file: Located, keys: InfrastructureKeys, folder: Path) -> InfrastructureSetting:
    host, port = host_and_port(keys.listen)
    facts = {
        name: RegionFacts(each.price, each.latency, math.inf if each.capacity is None else each.capacity)
        for name, each in keys.regions.items()
    }
    rules = InfrastructureRules(
        keys.patience,
        tuple(keys.prefer),
        facts,
        _bound(keys.max_price),
        _bound(keys.max_latency),
        _bound(keys.max_hosts),
        keys.min_hosts,
        {name: each.priority for name, each in keys.applications.items()},
        keys.consolidate_below,
        keys.silence,
    )
    return InfrastructureSetting(
        host,
        port,
        read_token(file, ("infrastructure", "token_file"), folder / keys.token_file),
        folder / keys.journal,
        keys.period,
        rules,
        tuple(keys.regions),
        tuple(keys.applications),
    )


def _region(file: Located, keys: RegionKeys, folder: Path) -> RegionSetting:
    types = []
    for name, each in keys.host_types.items():
        try:
            types.append(each.model_copy(update={"region": keys.name}).built(name))
        except ElastreamError as error:
            raise file.error(("region", "host_types", name), str(error)) from None
    enough = tuple(kind for kind in types if kind.cores >= keys.replica_cores)
    if not enough:
        raise file.error(("region", "replica_cores"), f"no host type has {keys.replica_cores:g} cores for a replica")
    return RegionSetting(
        keys.name,
        keys.infrastructure,
        read_token(file, ("region", "token_file"), folder / keys.token_file),
        folder / keys.journal,
        keys.period,
        RegionRules(keys.spare, keys.low, keys.settle),
        enough,
        folder / keys.hosts.directory,
    )


def _bound(value: float | None) -> float:
    return math.inf if value is None else value
