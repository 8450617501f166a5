"""What a pool of machines and its applications say to each other, as frozen values that survive a trip through JSON.

A pool answers a claim with a `View`, as an infrastructure manager does; transport is left to others.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from elastream.model.cloud import Billing, HostType
from elastream.planning.managers import messages
from elastream.planning.managers.messages import Holding

__all__ = ["Claim", "PoolOffer"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Application to pool, twice a second or so: what it holds, and what it would have besides."""

    holding: Holding
    asks: tuple[str, ...] = ()
    critical: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; `from_json` is its inverse."""
        return {"holding": messages.to_json(self.holding), "asks": list(self.asks), "critical": self.critical}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Claim":
        """The claim that `to_json` wrote; raises ValueError or KeyError where it is none."""
        holding = messages.from_json(data["holding"])
        if not isinstance(holding, Holding):
            raise ValueError(f"a claim holds a Holding, not a {type(holding).__name__}")
        return cls(holding, tuple(map(str, data["asks"])), bool(data["critical"]))


@dataclass(frozen=True)
class PoolOffer:
    """What a pool called `name` has: kinds of machines, how many of each by its name, and how far apart its regions are
    (one way, as in `elastream.Local`).
    """

    name: str
    kinds: tuple[HostType, ...]
    machines: Mapping[str, int]
    latency: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)

    @property
    def kind_of_machine(self) -> Mapping[str, str]:
        """Name of its kind by the name of each machine."""
        kinds = [kind for kind, count in self.machines.items() for _ in range(count)]
        return {f"m{number}": kind for number, kind in enumerate(kinds, start=1)}

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; `from_json` is its inverse."""
        return {
            "name": self.name,
            "kinds": [asdict(kind) for kind in self.kinds],
            "machines": dict(self.machines),
            "latency": {region: dict(others) for region, others in self.latency.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "PoolOffer":
        """The offer that `to_json` wrote; raises ValueError, KeyError or TypeError where it is none."""
        kinds = tuple(HostType(**{**kind, "billing": Billing(**kind["billing"])}) for kind in data["kinds"])
        return cls(str(data["name"]), kinds, dict(data["machines"]), dict(data["latency"]))
