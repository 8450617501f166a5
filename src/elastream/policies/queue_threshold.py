"""VISP's baseline: scales operators by their queues, and leases or releases hosts accordingly, ignoring billing.

From Hochreiner et al., "Cost-efficient enactment of stream processing topologies" (PeerJ CS 2017), section Baseline. It
leaves placement open; hosts are packed here, which favours the baseline.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from elastream.core.action import DrainHost, ReleaseHost
from elastream.core.decision import Unknown
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric, Needs, Rows
from elastream.core.observation import Context, Observation
from elastream.core.plant import Plan, Policy
from elastream.dataflow.stages import Unit
from elastream.policies.common.draft import Draft
from elastream.policies.common.measures import missing_type_reason
from elastream.policies.common.queues import fixed_queue, fixed_waits, waiting


@dataclass(frozen=True, slots=True)
class QueueThreshold(Policy):
    """Add one instance above `upper` waiting items and two above `second_upper`; remove one below `lower`.

    The paper's threshold is "according to Algorithm 1": its 50 items, without its durations. Instances are placed on the
    oldest host with room (first fit). A host is leased if all are full. The instance on the youngest host goes first; an
    empty host is released.

    Args:
        host_type: Type to lease; None: the cheapest per core that fits.
    """

    upper: float = 50.0
    second_upper: float = 250.0
    lower: float = 1.0
    host_type: str | None = None

    needs: ClassVar[Needs] = frozenset({(Rows.OPERATOR, Metric.BACKLOG)})
    name: ClassVar = "queue_threshold"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        draft = Draft(observation)
        queues = {unit.name: waiting(observation, unit) for unit in draft.scalable}
        for unit in draft.scalable:
            if queues[unit.name] < self.lower and draft.instances[unit.name] > 1:
                self._scale_down(draft, unit)
        for unit in draft.scalable:
            queue = queues[unit.name]
            for _ in range((queue > self.upper) + (queue > self.second_upper)):
                self._scale_up(draft, unit, f"{queue:.0f} waiting")
        self._release_empty(draft)
        draft.spread_state()
        return Plan(
            tuple(draft.plan),
            remarks=fixed_waits(observation, self.upper),
            unknown=tuple(
                Unknown(Metric.BACKLOG, Rows.OPERATOR, unit.operators[0])
                for unit in draft.scalable
                if math.isnan(queues[unit.name])
            ),
        )

    def unsupported_reason(self, context: Context) -> str | None:
        return fixed_queue(context) or missing_type_reason(context, self.host_type)

    def _scale_down(self, draft: Draft, unit: Unit) -> None:
        placed = draft.placements(unit)
        if placed:
            draft.remove(placed[-1][0], "nothing waiting")
        else:
            draft.remove_any(unit, "nothing waiting")

    def _scale_up(self, draft: Draft, unit: Unit, why: str) -> None:
        room = (draft.feasibility(unit) >= 1).nonzero()[0]
        if len(room):
            draft.add(unit, draft.hosts[int(room[0])], why)
        elif draft.may_lease:
            type = draft.cheapest_type(unit, self.host_type)
            if type is not None:
                draft.add(unit, draft.lease(type, f"no room for {unit.name}"), why)

    def _release_empty(self, draft: Draft) -> None:
        for host, lease in draft.observation.leases.items():
            if lease.state is HostState.DRAINING and not draft.tasks_on(host):
                draft.do(ReleaseHost(host, why="empty"))
        least = max(1, draft.observation.context.min_hosts)
        for host, lease in reversed(tuple(draft.leases.items())):
            empty = host not in draft.received and draft.holds_state_only(host)
            if lease.state is HostState.RUNNING and empty and draft.open_hosts > least:
                mark = draft.mark()
                draft.close(host)
                if not draft.floats:
                    draft.rollback(mark)
                    continue
                if draft.tasks_on(host):
                    draft.do(DrainHost(host, why="its last instance is gone"))
                draft.do(ReleaseHost(host, why="its last instance is gone"))
