"""What policies may know of a simulated run before it begins: its loads, and what its hosts and links will do."""

from collections.abc import Mapping, Sequence

from elastream.model.cloud import HostType
from elastream.model.endpoints import ArrivalPattern
from elastream.model.prospect import Prospect
from elastream.model.stages import Layout
from elastream.simulation import Settings

__all__ = ["prospect_of"]


def prospect_of(
    layout: Layout,
    host_types: Sequence[HostType],
    loads: Mapping[str, ArrivalPattern],
    settings: Settings,
    *,
    seconds: float | None = None,
    window: float | None = None,
) -> Prospect:
    """The prospect of a run with these settings; arguments as of `Prospect`."""
    costs = {operator: (each.cost, each.selectivity) for operator, each in settings.services.items()}
    return Prospect(layout, host_types, loads, seconds, window, costs)
