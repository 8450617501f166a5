"""A pool of machines that several applications share, written as YAML.

    pool: demo
    listen: 127.0.0.1:8471
    machines: {small: 3}
    token_file: token
    journal: demo.journal
    patience: 45s

`host_types` and `latency` are written as for a dataflow. Paths are relative to the document. Every error names file, line
and field in one sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from elastream.clouds.local.local import HOST_TYPES
from elastream.clouds.pool import local_of
from elastream.documents.located import read_yaml
from elastream.documents.schema import Duration, HostTypeKeys, Keys
from elastream.documents.user_code import near
from elastream.model.cloud import HostType
from elastream.model.errors import ElastreamError
from elastream.planning.sharing.messages import PoolOffer
from elastream.planning.sharing.pooling import PoolRules
from elastream.services.serving import Listen, host_and_port, read_token

__all__ = ["PoolSetting", "load_pool"]

DEFAULTS = PoolRules()


@dataclass(frozen=True)
class PoolSetting:
    """A pool to be: what it offers, where it listens, under which rules, and where its journal is. token: None for none."""

    offer: PoolOffer
    rules: PoolRules
    host: str
    port: int
    journal: Path
    token: str | None = None


class PoolKeys(Keys):
    """A whole document."""

    pool: Annotated[str, Field(min_length=1)]
    machines: dict[str, Annotated[int, Field(ge=0)]]
    listen: Listen = "127.0.0.1:8471"
    token_file: str | None = None
    journal: str | None = None
    host_types: dict[str, HostTypeKeys] = Field(default_factory=dict)
    latency: dict[str, dict[str, Duration]] = Field(default_factory=dict)
    patience: Annotated[Duration, Field(gt=0)] = DEFAULTS.patience
    silence: Annotated[Duration, Field(gt=0)] = DEFAULTS.silence
    settle: Annotated[Duration, Field(ge=0)] = DEFAULTS.settle

    @field_validator("machines")
    @classmethod
    def _some(cls, value: Mapping[str, int]) -> Mapping[str, int]:
        if not sum(value.values()):
            raise ValueError("the pool has no machines")
        return {kind: count for kind, count in value.items() if count}


def load_pool(path: Path) -> PoolSetting:
    """The pool that the document `path` describes.

    Raises InputError where it cannot be read, DataflowError - with file, line and field - for what is wrong in it.
    """
    file = read_yaml(path)
    keys: PoolKeys = file.validate(PoolKeys)
    known: dict[str, HostType] = dict(HOST_TYPES)
    for name, each in keys.host_types.items():
        try:
            known[name] = each.built(name)
        except ElastreamError as error:
            raise file.error(("host_types", name), str(error)) from None
    for name in keys.machines:
        if name not in known:
            raise file.error(("machines", name), f"there is no host type {name!r}{near(name, known)}")
    offer = PoolOffer(keys.pool, tuple(known[name] for name in keys.machines), keys.machines, keys.latency)
    try:
        local_of(offer)
    except ElastreamError as error:
        raise file.error(("machines",), str(error)) from None
    host, port = host_and_port(keys.listen)
    return PoolSetting(
        offer,
        PoolRules(keys.patience, keys.silence, keys.settle),
        host,
        port,
        path.parent / (keys.journal or f"{keys.pool}.journal"),
        None if keys.token_file is None else read_token(file, ("token_file",), path.parent / keys.token_file),
    )
