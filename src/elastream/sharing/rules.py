"""Rules of an arbiter: timeouts, growth of regions, and what is shared (E2DF, section 4.1)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """Facts about a region: price of a host (per second), latency to it (s), highest number of hosts."""

    price: float = 0.0
    latency: float = 0.0
    capacity: float = math.inf


@dataclass(frozen=True)
class ArbiterRules:
    """Rules and timeouts of grants (seconds)."""

    # Time to leave a recalled host; afterwards its holder keeps it, and others cannot recall it for as long.
    patience: float = 120.0
    silence: float = math.inf  # time without claims after which an application counts as dead
    settle: float = 0.0  # minimum stay with a holder, unless another lacks its minimum
    linger: float = 2.0  # a free machine's lease ends this long before its paid unit
    # Share only empty hosts, unasked, by free slots (E2DF's own policy), instead of all hosts by requests.
    by_spare: bool = False
    prefer: tuple[str, ...] = ()  # regions that grow first
    regions: Mapping[str, RegionFacts] = field(default_factory=dict)
    max_price: float = math.inf  # dearer regions are refused
    max_latency: float = math.inf  # regions further away are refused
    max_hosts: float = math.inf  # limit of all regions together
    min_hosts: int = 1  # minimum of all regions together
    consolidate_below: float | None = None  # at this mean utilisation, a region's least used host must go; None for never
    absence: float = 180.0  # a region silent for this long blocks no other

    def refusal(self, region: str, sizes: Mapping[str, int], present: Callable[[str], bool] = lambda region: True) -> str:
        """Return why `region` may not have one more host; empty if it may.

        Args:
            present: Returns True if a region reports. An absent region blocks no other.
        """
        if reason := self._growth_problem(region, sizes):
            return reason
        for better in self.prefer:
            if better == region:
                break
            if present(better) and not self._growth_problem(better, sizes):
                return f"{better} is preferred and has room"
        return ""

    def _growth_problem(self, region: str, sizes: Mapping[str, int]) -> str:
        limits = self.regions.get(region, RegionFacts())
        if limits.price > self.max_price:
            return f"a host in {region} costs {limits.price:g} a second, more than {self.max_price:g}"
        if limits.latency > self.max_latency:
            return f"{region} is {limits.latency:g} s away, more than {self.max_latency:g} s"
        if sizes.get(region, 0) >= limits.capacity:
            return f"{region} has as many hosts as it can have, {limits.capacity:g}"
        return ""
