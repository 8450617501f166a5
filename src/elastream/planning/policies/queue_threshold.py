"""VISP's baseline: operators follow their queues, and hosts follow the operators with no thought of billing.

From "Cost-efficient enactment of stream processing topologies" (Hochreiner et al., PeerJ CS 2017), section Baseline. Where
instances are put and which one goes, the paper leaves open; the choices here pack hosts, which favours the baseline.
"""

from dataclasses import dataclass

from elastream.model.action import ReleaseHost
from elastream.model.cloud import HostState
from elastream.model.observation import Metric, Observation
from elastream.model.plant import Plan
from elastream.planning.algorithms.draft import Draft, Unit, cheapest_type

__all__ = ["QueueThreshold"]


@dataclass(frozen=True, slots=True)
class QueueThreshold:
    """The policy: one instance more above `upper` items waiting, two above `second_upper`, one fewer below `lower`.

    The paper speaks of an upper threshold "according to Algorithm 1" and of the queue as the trigger; it is read as that
    algorithm's 50 items, without its look at durations. A host is leased when all are full, so instances go to the oldest
    host with room (first fit), and released as soon as its last instance is gone, so the one on the youngest host goes.
    host_type: what to lease; None: the cheapest per core that fits.
    """

    upper: float = 50.0
    second_upper: float = 250.0
    lower: float = 1.0
    host_type: str | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        return "queue_threshold"

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Actions for this round. An unknown queue is above and below nothing."""
        draft = Draft(observation)
        queues = {unit.name: draft.value(unit, Metric.BACKLOG) for unit in draft.scalable}
        for unit in draft.scalable:
            if queues[unit.name] < self.lower and draft.instances[unit.name] > 1:
                self._scale_down(draft, unit)
        for unit in draft.scalable:
            queue = queues[unit.name]
            for _ in range((queue > self.upper) + (queue > self.second_upper)):
                self._scale_up(draft, unit, f"{queue:.0f} waiting")
        self._release_empty(draft)
        return Plan(tuple(draft.plan))

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
            type = cheapest_type(draft.observation.context, unit, self.host_type)
            if type is not None:
                draft.add(unit, draft.lease(type, f"no room for {unit.name}"), why)

    def _release_empty(self, draft: Draft) -> None:
        """Give back running hosts that hold nothing, down to the least number allowed."""
        least = max(1, draft.observation.context.min_hosts)
        for host, lease in reversed(tuple(draft.leases.items())):
            empty = host not in draft.received and not draft.tasks_on(host)
            if lease.state is HostState.RUNNING and empty and draft.open_hosts > least:
                mark = draft.mark()
                draft.close(host)
                if not draft.floats:
                    draft.rollback(mark)
                    continue
                draft.do(ReleaseHost(host, why="its last instance is gone"))
