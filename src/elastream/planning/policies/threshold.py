"""The default policy: leases hosts for the rate expected when they will work, and gives them back when what is paid ends.

The same rules apply on Spark and in simulation, without learning or tuning per dataflow. Its defaults are those of Flink's
autoscaler and of Kubernetes' horizontal pod autoscaler (HPA), as far as hosts that take a minute to start allow.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from elastream.model.action import DrainHost
from elastream.model.errors import ElastreamError
from elastream.model.metrics import Metric, Needs
from elastream.model.observation import Observation
from elastream.model.plant import Plan
from elastream.model.promises import Rows
from elastream.planning.algorithms.placement import balance
from elastream.planning.algorithms.seen import Seen
from elastream.planning.policies.apart_round import ApartRound
from elastream.planning.policies.fused_round import FusedRound
from elastream.planning.policies.threshold_round import Scaled
from elastream.planning.provision import TARGET_UTILISATION

__all__ = ["Threshold"]

TOLERANCE = 0.1
"""Part of the target utilisation by which it may be missed without an action (HPA's default tolerance)."""


@dataclass(frozen=True)
class Threshold:
    """Fill the hosts that work to `scale_out`, within `tolerance`, one host start-up ahead.

    **Rate.** The need is that of the rate expected when a host asked for now would work: the level of the arrival rate, and
    its trend where that is certain (`forecasting.trend`; samples after the last jump only, so that a step is no trend and a
    burst counts at once). Noise does not count as growth: `scale_out` leaves room for it, and only where the upper
    bound of the rate expected (one case in twenty is higher, as a mean over the target latency) would not fit the full
    hosts, it needs more. So it does where the load jumped, unforeseen, by more several times in the last two hours
    (`forecasting.surprise`): what of another such jump waits when hosts asked for then work must be in time, so that it is
    at most what the full hosts process in half of the target latency.

    **Need.** Fused, the cores at that rate are those on the line through recent rates and busy cores, and beyond these
    rates the upper bound of its mean response; without a line, work per record times the rate; until a run has been warm,
    the declared costs. Samples of the `cool_down` seconds after a run's first records or a host's coming are not warm:
    workers start, code is compiled. A slot counts as the slowest of all hosts' has it, since a stage's tasks have equal
    parts and wait for the one there. Apart, each operator's are its own work per record times the rate that reaches it
    if no queue holds records back: from the sources' rates and measured (else declared) selectivities. Late backlog adds:
    the part of the queues, when a host asked for now would work, above half of arrival rate x target latency (Little's
    law; the other half is for their processing) is to be processed within the target latency, or within the start of a
    host if that is longer. If latency is above target although no host came in the last `cool_down` seconds, and records
    arrive faster than they are processed, the hosts are insufficient whatever the metered work: the need is their cores
    times arrival over processed rate, at least one host more; and for half an hour hosts are not given back to so few,
    while the rate is as high. State partitions that cannot process the rate on any hosts bound it (`algorithms.reach`).

    **Growing.** Hosts whose need would fill them above `scale_out` x (1 + `tolerance`) get all missing ones at once:
    drains are cancelled first, then hosts are leased; those that start count. `spare` hosts come on top, and `min_hosts`
    holds in any case. Apart, instances are placed on hosts with room, then on the new hosts, with which they start.

    **Shrinking.** Hosts go if the highest need of the last `settle` seconds (HPA's stabilisation window) fills those left
    to no more than that bound, and so does that of a rate that goes on growing for so long, nothing is late, no host is
    starting or draining, and `cool_down` seconds have passed since one came or went; at most half of them a round. And only
    when what is paid of a host ends, or costs nothing: its minimum is over, and its billing time unit ends before the next
    round could give it back. Fused, it is drained first. A constant load reaches a fixed point, then nothing happens.

    **Operators.** Fused, a stage without state gets as many tasks as slots that the need fills to the target, all while
    anything is late; the pool of a `waits` operator follows its occupied threads. Tasks with state are spread onto new
    hosts (`planning.algorithms.placement`). Apart, instances that are not needed any more stay until they free a host or
    room.

    What is unknown is never taken as 0: the newest known value of the window counts, and where nothing is known, nothing is
    sized, which the plan says (`Plan.unknown`) - except that while records are late and nothing can be sized, one host
    more is leased at a time.

    scale_out: part of the usable cores to fill (Flink's autoscaler: 0.7). tolerance: fraction of it (HPA: 0.1). spare:
    hosts. settle: seconds; None: the start of a host, at least 10 s. cool_down, window: seconds; window: over which work
    per record is measured. host_type: type to lease; None: that with the lowest price per core and second, the smaller
    one if equal (E2DF: finest control). max_parallelism: most instances of one operator; None: 64 threads where it waits,
    else without bound.
    """

    scale_out: float = TARGET_UTILISATION
    tolerance: float = TOLERANCE
    spare: int = 0
    settle: float | None = None
    cool_down: float = 10.0
    window: float = 10.0
    host_type: str | None = None
    max_parallelism: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.scale_out <= 1:
            raise ElastreamError(f"scale_out is {self.scale_out:g}; it must be above 0 and at most 1")
        if not 0 <= self.tolerance < 1:
            raise ElastreamError(f"tolerance is {self.tolerance:g}; it must be 0 or more and below 1")
        for name, given in vars(self).items():
            if isinstance(given, int | float) and not 0 <= given < math.inf:
                raise ElastreamError(f"{name} is {given:g}; it must be 0 or more, and finite")

    needs: ClassVar[Needs] = frozenset(
        {(Rows.OPERATOR, Metric.ARRIVAL_RATE), (Rows.OPERATOR, Metric.PROCESSED_RATE), (Rows.OPERATOR, Metric.BUSY_CORES)}
    )
    name: ClassVar = "threshold"

    @property
    def default_window(self) -> bool:
        """Whether nobody said for how long hosts that are not needed are kept."""
        return self.settle is None

    def plan(self, observation: Observation, memory: object = None) -> Plan:
        """Host actions, then parallelism, then moves. memory: a `Seen`."""
        scaled = self.scale(observation, memory)
        leaving = any(isinstance(action, DrainHost) for action in scaled.hosts)
        moves = [] if leaving or observation.context.layout.apart else balance(observation)
        actions = (*scaled.hosts, *scaled.parallelism, *moves)
        return Plan(actions, scaled.seen, scaled.predicted, scaled.remarks, (), scaled.unknown, scaled.recommended)

    def scale(self, observation: Observation, memory: object = None) -> Scaled:
        """Host actions and parallelism actions of the plan, without moves of fused tasks."""
        seen = memory if isinstance(memory, Seen) else None
        if observation.context.layout.apart:
            return ApartRound(self, observation, seen).scaled()
        return FusedRound(self, observation, seen).scaled()
