"""A price list by the core and the gigabyte, as clusters bill executors: from it each host type has its price."""

import math
from dataclasses import dataclass, field, replace

from elastream.model.cloud import Billing, HostType
from elastream.model.errors import CloudError

__all__ = ["PriceList"]

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Money for a core-hour and for a gigabyte-hour (10^9 bytes), in `currency`; billed as `billing` says, by the second.

    currency: for people, such as `"EUR"`. Raises CloudError for prices that are negative or no numbers.
    """

    core_hour: float
    gb_hour: float = 0.0
    currency: str = ""
    billing: Billing = field(default_factory=lambda: Billing(1.0))

    def __post_init__(self) -> None:
        for name in ("core_hour", "gb_hour"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise CloudError(f"{name} is {value!r}; it is a price, 0 or more", ("prices", name))

    def of(self, kind: HostType) -> HostType:
        """`kind` at the price of its cores and memory, billed as the list says."""
        hourly = kind.cores * self.core_hour + kind.memory / 1000 * self.gb_hour
        return replace(kind, price=hourly * self.billing.unit / HOUR, billing=self.billing)
