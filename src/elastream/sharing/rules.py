"""The rules of an arbiter: waiting times, which region may have one more host, what is shared (E2DF, section 4.1)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """What an arbiter knows of a region: price of a host (per second), latency to it (s), hosts it has."""

    price: float = 0.0
    latency: float = 0.0
    capacity: float = math.inf


@dataclass(frozen=True)
class ArbiterRules:
    """Rules and waiting times of grants.

    patience: seconds after which a recalled host that was not left is its holder's again; one that was recalled for another
    application is then left alone for as long. silence: seconds without a claim after which an application counts as dead.
    settle: seconds that a host stays with whom it was given to, unless another lacks its minimum. linger: seconds before
    the end of a paid unit at which a free machine's lease ends. by_spare: free hosts are dealt unasked, by free slots, and
    only empty ones change hands, as in E2DF; else all are shared by what applications request.

    Of regions: prefer: those that grow before all others. regions: facts by name. max_price, max_latency: regions beyond
    are refused. max_hosts, min_hosts: of all regions together. consolidate_below: mean utilisation of a region at or below
    which its least used host is to be left, beyond what the region itself proposes; None: never. absence: seconds after
    which a region that was not heard is waited for no longer.
    """

    patience: float = 120.0
    silence: float = math.inf
    settle: float = 0.0
    linger: float = 2.0
    by_spare: bool = False
    prefer: tuple[str, ...] = ()
    regions: Mapping[str, RegionFacts] = field(default_factory=dict)
    max_price: float = math.inf
    max_latency: float = math.inf
    max_hosts: float = math.inf
    min_hosts: int = 1
    consolidate_below: float | None = None
    absence: float = 180.0

    def refusal(self, region: str, sizes: Mapping[str, int], present: Callable[[str], bool] = lambda region: True) -> str:
        """Why `region` may not have one more host, with `sizes` hosts in each region; empty where it may.

        present: whether a region reports; one that does not, or that may not grow itself, blocks no other.
        """
        if reason := self._unfit(region, sizes):
            return reason
        for better in self.prefer:
            if better == region:
                break
            if present(better) and not self._unfit(better, sizes):
                return f"{better} is preferred and has room"
        return ""

    def _unfit(self, region: str, sizes: Mapping[str, int]) -> str:
        """Why `region` may not grow, regardless of other regions."""
        facts = self.regions.get(region, RegionFacts())
        if facts.price > self.max_price:
            return f"a host in {region} costs {facts.price:g} a second, more than {self.max_price:g}"
        if facts.latency > self.max_latency:
            return f"{region} is {facts.latency:g} s away, more than {self.max_latency:g} s"
        if sizes.get(region, 0) >= facts.capacity:
            return f"{region} has as many hosts as it can have, {facts.capacity:g}"
        return ""
