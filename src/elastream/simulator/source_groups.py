"""Which sources feed operators together: their records under way count against one limit."""

from elastream.core.qos import offered_rates
from elastream.simulator.network import QueueNetwork

LEAST = 1e-9
"""Records of a source that has none, as a weight beside others'."""


def source_groups(network: QueueNetwork) -> list[tuple[list[str], dict[str, float]]]:
    """Groups of sources that reach a common operator, with the records at each operator per record of the group."""
    graph, terms = network.graph, network.terms[min(network.taken.values())]
    composition = terms.composition
    selectivity = {name: cost.selectivity for name, cost in terms.costs.items()}
    totals = {name: max(float(source.total), LEAST) for name, source in network.sources.items()}
    reached = {}
    for name in network.sources:
        volumes = offered_rates(graph, {name: 1.0}, selectivity, composition)
        reached[name] = {o for o in network.by_name if volumes[o] > 0}
    groups: list[tuple[list[str], set[str]]] = []
    for name, stations in reached.items():
        joined = [group for group in groups if group[1] & stations]
        groups = [group for group in groups if not group[1] & stations]
        members = [each for group in joined for each in group[0]] + [name]
        groups.append((members, stations.union(*(group[1] for group in joined))))
    found = []
    for members, stations in groups:
        every = sum(totals[name] for name in members)
        volumes = offered_rates(graph, {name: totals[name] / every for name in members}, selectivity, composition)
        found.append((members, {name: volumes[name] for name in sorted(stations)}))
    return found
