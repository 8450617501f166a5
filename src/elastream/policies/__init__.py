"""Policies: each is one module or one folder, a pure function from an observation to a plan."""

from typing import TYPE_CHECKING

from elastream._lazy import lazy_names

if TYPE_CHECKING:
    from elastream.core.observation import Observation as Observation
    from elastream.core.plant import Plan as Plan
    from elastream.core.plant import Policy as Policy
    from elastream.policies.btu import Btu as Btu
    from elastream.policies.by_load import ByLoad as ByLoad
    from elastream.policies.e2df.policy import E2df as E2df
    from elastream.policies.elastic_allocator.policy import ElasticAllocator as ElasticAllocator
    from elastream.policies.highest_value import HighestValue as HighestValue
    from elastream.policies.horizon.policy import Horizon as Horizon
    from elastream.policies.otd import Otd as Otd
    from elastream.policies.placements import Even as Even
    from elastream.policies.queue_threshold import QueueThreshold as QueueThreshold
    from elastream.policies.ring.policy import RingBalance as RingBalance
    from elastream.policies.static import Static as Static
    from elastream.policies.threshold import Threshold as Threshold
    from elastream.policies.value_cost.policy import Centralised as Centralised
    from elastream.policies.value_cost.policy import Sharded as Sharded

__getattr__, __dir__, __all__ = lazy_names(
    "elastream.policies",
    {
        "elastream.core.observation": ("Observation",),
        "elastream.core.plant": ("Plan", "Policy"),
        "elastream.policies.btu": ("Btu",),
        "elastream.policies.by_load": ("ByLoad",),
        "elastream.policies.e2df.policy": ("E2df",),
        "elastream.policies.elastic_allocator.policy": ("ElasticAllocator",),
        "elastream.policies.highest_value": ("HighestValue",),
        "elastream.policies.horizon.policy": ("Horizon",),
        "elastream.policies.otd": ("Otd",),
        "elastream.policies.placements": ("Even",),
        "elastream.policies.queue_threshold": ("QueueThreshold",),
        "elastream.policies.ring.policy": ("RingBalance",),
        "elastream.policies.static": ("Static",),
        "elastream.policies.threshold": ("Threshold",),
        "elastream.policies.value_cost.policy": ("Centralised", "Sharded"),
    },
)
