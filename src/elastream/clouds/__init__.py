"""Where hosts come from: local processes, shared machines, and the executors of a cluster."""

from typing import TYPE_CHECKING

from elastream._lazy import lazy_names

if TYPE_CHECKING:
    from elastream.clouds.in_process import InProcess as InProcess
    from elastream.clouds.kubernetes import Kubernetes as Kubernetes
    from elastream.clouds.local.local import Local as Local
    from elastream.clouds.local.network import Link as Link
    from elastream.clouds.pool import Pool as Pool
    from elastream.clouds.provider import Cloud as Cloud
    from elastream.clouds.provider import Provider as Provider
    from elastream.clouds.standalone import Standalone as Standalone
    from elastream.clouds.yarn import Yarn as Yarn
    from elastream.core.hosts import Billing as Billing
    from elastream.core.hosts import HostType as HostType
    from elastream.core.hosts import PriceList as PriceList
    from elastream.evaluation.prices import read_prices as read_prices

__getattr__, __dir__, __all__ = lazy_names(
    "elastream.clouds",
    {
        "elastream.clouds.in_process": ("InProcess",),
        "elastream.clouds.kubernetes": ("Kubernetes",),
        "elastream.clouds.local.local": ("Local",),
        "elastream.clouds.local.network": ("Link",),
        "elastream.clouds.pool": ("Pool",),
        "elastream.clouds.provider": ("Cloud", "Provider"),
        "elastream.clouds.standalone": ("Standalone",),
        "elastream.clouds.yarn": ("Yarn",),
        "elastream.core.hosts": ("Billing", "HostType", "PriceList"),
        "elastream.evaluation.prices": ("read_prices",),
    },
)
