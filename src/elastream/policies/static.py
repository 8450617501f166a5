"""A cluster of fixed size: the baseline for elasticity."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, get_args

from elastream.core.action import Action, LeaseHost, SetParallelism
from elastream.core.hosts import HostType, by_zones
from elastream.core.metrics import Metric
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy, Prospect
from elastream.core.wording import at_most, counted
from elastream.dataflow.stages import Layout, Unit
from elastream.errors import CloudError, DataflowError, InputError
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import missing_type_reason, types_to_lease
from elastream.policies.common.placement import balance
from elastream.policies.common.provision import (
    At,
    Costs,
    declared_cores,
    declared_provision,
    first_provision,
    instances_to_fill,
)


@dataclass(frozen=True)
class Static(Policy):
    """A fixed number of hosts, leased at the start, replaced when lost, and filled with instances.

    Tasks are spread over the hosts when these are up, and then stay. Before a simulated run, `prepared` turns `"peak"` and
    `"mean"` into a number; otherwise the first round uses the loads that sources declare.

    Args:
        hosts: A number. `"peak"` or `"mean"`: as many as the load's peak or mean fills to 70 %, by declared costs.
        parallelism: Instances by operator; no others change. Empty: instances fill the hosts in proportion to work
            (declared, else measured, else in equal shares). A chained stage is as wide as the hosts have slots.
        host_type: Type to lease; None: the provider's first.

    Raises:
        InputError: `hosts` is anything else.
    """

    hosts: int | str
    parallelism: Mapping[str, int] = field(default_factory=dict)
    host_type: str | None = None
    name: ClassVar = "static"

    def __post_init__(self) -> None:
        number = isinstance(self.hosts, int) and not isinstance(self.hosts, bool)
        if self.hosts not in get_args(At) and not (number and int(self.hosts) >= 1):
            raise InputError(f"hosts: {self.hosts!r} is not a whole number of 1 or more, 'peak' or 'mean'")

    def unsupported_reason(self, context: Context) -> str | None:
        return missing_type_reason(context, self.host_type)

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Lease missing hosts, fill running ones, spread tasks once none is starting. The memory is the number of hosts."""
        context = observation.context
        if isinstance(memory, int):
            hosts = memory
        else:
            types, loads = tuple(context.host_types.values()), context.graph.loads
            hosts = _number(self, types, lambda type, at: declared_provision(context.layout, type, loads, at).hosts)
        actions = missing_hosts(observation, hosts, self.host_type)
        if self.parallelism:
            actions += [
                SetParallelism(operator, instances, why="fixed")
                for operator, instances in self.parallelism.items()
                if observation.composition.parallelism.get(operator) != instances
            ]
        else:
            actions += filling(observation)
        few = f"{at_most(context.max_hosts)}, and {hosts} are wanted"
        remarks = (few,) if hosts > context.max_hosts else ()
        # Unchained, instances reserve cores and fill the hosts: no placed instance has a better host to move to.
        moves = [] if observation.coming or context.layout.unchained else balance(observation)
        return Plan((*actions, *moves), hosts, remarks=remarks)

    def prepared(self, prospect: Prospect) -> "Static":
        """Return the policy with a number of hosts. Raises what sizing raises (`provision.declared_provision`)."""

        def size(type: HostType, at: At) -> int:
            return declared_provision(
                prospect.layout, type, prospect.loads, at,
                seconds=prospect.seconds, window=prospect.window, costs=prospect.costs,
            ).hosts  # fmt: skip

        return replace(self, hosts=_number(self, prospect.host_types, size))


def initial_hosts(
    policy: Policy, layout: Layout, host_types: Sequence[HostType], max_hosts: int, costs: Costs | None = None
) -> tuple[list[str], Mapping[str, int]] | None:
    """Return the host types and instances that a `Static` has before a load begins; None for other policies.

    Args:
        costs: See `provision.declared_provision`. Operators without a cost get equal shares.
    """
    if not isinstance(policy, Static) or not isinstance(policy.hosts, int):
        return None
    type = _type_of(policy, host_types)
    try:
        hosts = max(min(policy.hosts, max_hosts), first_provision(layout, type).hosts)
    except CloudError:  # the plant says which operator fits no host
        return None
    kinds = [each.name for each in by_zones(host_types, hosts, type)]
    if policy.parallelism:
        return kinds, {}
    try:
        cores = declared_cores(layout.graph, {source.name: 1.0 for source in layout.graph.sources}, costs)
    except DataflowError:
        cores = {}
    return kinds, instances_to_fill(layout, type, hosts, cores)


def _number(policy: Static, host_types: Sequence[HostType], size: Callable[[HostType, At], int]) -> int:
    if isinstance(policy.hosts, int):
        return policy.hosts
    return size(_type_of(policy, host_types), "peak" if policy.hosts == "peak" else "mean")


def _type_of(policy: Static, host_types: Sequence[HostType]) -> HostType:
    types = {type.name: type for type in host_types}
    if not types or policy.host_type not in (None, *types):
        raise InputError(f"host_type: there is no host type {policy.host_type!r} (there are: {', '.join(types) or 'none'})")
    return host_types[0] if policy.host_type is None else types[policy.host_type]


def missing_hosts(observation: Observation, hosts: int, host_type: str | None = None) -> list[Action]:
    """Return leases up to `hosts` and `max_hosts`; none if no host type can be leased."""
    required = min(hosts, observation.context.max_hosts)
    missing = required - len(observation.usable) - len(observation.coming)
    if missing <= 0 or not observation.context.host_types:
        return []
    kind = host_type or next(iter(observation.context.leasable))
    kinds = types_to_lease(observation, observation.context.host_types[kind], missing)
    return [
        LeaseHost(observation.host_name(n), each.name, each.region, why=f"{counted(hosts, 'host')} at all times")
        for n, each in enumerate(kinds)
    ]


def filling(observation: Observation) -> list[Action]:
    """Return added instances that fill the usable hosts in proportion to work."""
    usable, composition = observation.usable, observation.composition
    if not observation.context.layout.unchained:
        slots = sum(observation.leases[host].type.width for host in usable)
        why = f"{counted(slots, 'slot')} on {counted(len(usable), 'host')}"
        operators = observation.context.graph.by_name
        return [
            SetParallelism(name, slots, why=why)
            for name in sorted(observation.context.scalable)
            if slots and not operators[name].waits and composition.parallelism.get(name) != slots
        ]
    draft = Draft(observation)
    work = _work(observation)
    open_for = [unit for unit in draft.scalable if work[unit.name] > 0 and unit.cores > 0]

    def need(unit: Unit) -> float:
        return work[unit.name] / (max(1, draft.instances[unit.name]) * unit.cores)

    while open_for:
        neediest = max(open_for, key=need)
        room = [row for row in (draft.feasibility(neediest) >= 1).nonzero()[0] if draft.ready[row]]
        if not room:
            open_for.remove(neediest)
            continue
        emptiest = max(room, key=lambda row: draft.free_cores[row] / draft.cores[row])
        draft.add(neediest, draft.hosts[emptiest], f"{counted(len(usable), 'host')} filled in proportion to work")
    return draft.plan


def _work(observation: Observation) -> Mapping[str, float]:
    graph = observation.context.graph
    try:
        rates = {source.name: 1.0 for source in graph.sources}
        return declared_cores(graph, rates, composition=observation.composition)
    except DataflowError:
        busy = {name: observation.operators.value(name, Metric.BUSY_CORES) for name in observation.context.scalable}
        least = min((cores for cores in busy.values() if cores > 0), default=1.0)
        return {name: cores if cores > 0 else least for name, cores in busy.items()}


def placement_unsupported_reason(policy: str, hosts: int, context: Context) -> str | None:
    """Return why a policy that only places tasks can do nothing (it has no second host), or None."""
    if hosts < 0:
        return f"hosts is {hosts}; it must be a whole number, 0 or more"
    if max(hosts, context.min_hosts) > 1:
        return None
    return f"it places tasks on the hosts that are there and leases none: give it some, such as {policy}:hosts=4"
