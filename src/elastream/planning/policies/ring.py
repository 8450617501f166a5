"""The thesis's load balancing and elasticity of operators with state: hosts on a ring negotiate with their neighbours.

Kumbhare's thesis, section 6.5. What it leaves open, and where this policy differs, is said in
`docs/explanation/resilient-state.md`.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from elastream.model.errors import InputError
from elastream.model.metrics import Metric, Needs
from elastream.model.observation import Context, Observation
from elastream.model.plant import Plan
from elastream.model.promises import Rows
from elastream.planning.policies.ring_round import Round, Watched
from elastream.planning.provision import TARGET_UTILISATION

__all__ = ["RingBalance"]

DEFAULT_LATENCY = 2.0
"""Seconds that stand for a target latency where none is given."""
TOLERANCE = 0.1
"""Fraction of the highest level by which a change must lower it (the default tolerance of Kubernetes' HPA)."""


@dataclass(frozen=True)
class RingBalance:
    """Every operator with state has a ring of all hosts (`elastream.model.ring`), whose tokens follow the load.

    **Overloaded** is a host whose CPU use is at least `cpu_high` and for which records wait at least `queue_high` seconds;
    **light** one with at most `cpu_low` and `queue_low`. Use of CPU counts at the rate at which records arrive, and the
    queue of a query for those of its hosts that would be busy then (`planning.algorithms.ring_load`).

    **Balance.** An overloaded host asks its neighbour clockwise; if that is not light, this one asks its own, and so on.
    The first that is light takes over a part of the interval before it, and so does each up to the overloaded one, all in
    one change of the ring. cut: how large a part: `"half"`: the thesis's half of the interval; where measured loads of the
    partitions say that this would not lower the highest level of these hosts by `gain`, or with `"load"` always: such that
    the highest level is lowest. With `"load"` further neighbours take part where that lowers the highest level more, and
    none need be light, so that a skew is balanced by one change where halves take one for each neighbour. What hosts are
    busy with beside state is a mean of the last half minute (`ring_round.OTHER`).

    **Scale-out.** If no host is light, as many hosts are leased as the load needs at `cpu_high`, at least one. A host that
    has come joins every ring between the one with the highest level and its neighbour, and takes over only once it has
    their state (`SetTokens`, by both plants). Of host types of one price the one in another fault zone than the overloaded
    host and its neighbour is leased; at the start neighbours are of distinct zones.

    **Scale-in.** A host goes if it and its neighbour clockwise have been light for `calm` seconds, nothing waits, and the
    neighbour would be below `cpu_high` by `gain` with the load of both as it is expected; and only when what is paid of it
    ends (`planning.algorithms.billing`). It is drained, and its interval is its neighbour's.

    **Damping.** Two thresholds, and: a host must be overloaded for `patience` seconds; after a change nothing is decided
    for `cool_down` seconds from when its state has moved; a trend of the arrival rate, where it is certain
    (`forecasting.trend`), is counted on for one host's start, so that no host goes while the load grows.

    **One key.** A state partition that is busy alone cannot be divided: where a change would not lower the highest level
    by `gain`, nothing is moved and nothing leased for it, and a remark names the partition.

    cpu_low: None: half of cpu_high. queue_high: seconds; None: half the target latency. queue_low: None: half of
    queue_high. calm: None: the start of a host, at least 10 s. host_type: type to lease; None: that with the lowest price
    per core and second. partitions_a_host: state partitions for each host that may be leased, of runs that do not say how
    many: one is a tenth of a host's load.
    """

    cpu_high: float = TARGET_UTILISATION
    cpu_low: float | None = None
    queue_high: float | None = None
    queue_low: float | None = None
    patience: float = 3.0
    cool_down: float = 10.0
    calm: float | None = None
    cut: Literal["half", "load"] = "half"
    gain: float = TOLERANCE
    host_type: str | None = None
    partitions_a_host: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.light < self.cpu_high <= 1:
            raise InputError(
                f"cpu_low is {self.light:g} and cpu_high {self.cpu_high:g}; they must be 0 < cpu_low < cpu_high <= 1"
            )
        for name in ("queue_high", "queue_low", "patience", "cool_down", "calm"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                raise InputError(f"{name} is {value:g} s; it must be 0 s or more")
        if self.queue_high is not None and self.queue_low is not None and self.queue_low > self.queue_high:
            raise InputError(f"queue_low is {self.queue_low:g} s; it must be at most queue_high, {self.queue_high:g} s")
        if self.partitions_a_host < 1:
            raise InputError(f"partitions_a_host is {self.partitions_a_host}; it must be 1 or more")
        if not 0 <= self.gain < 1:
            raise InputError(f"gain is {self.gain:g}; it must be 0 or more and below 1")
        if self.cut not in (known := ("half", "load")):
            raise InputError(f"cut is {self.cut!r}; it must be {' or '.join(map(repr, known))}")

    @property
    def light(self) -> float:
        """Part of its cores up to which a host is light."""
        return self.cpu_high / 2 if self.cpu_low is None else self.cpu_low

    def queues(self, target_latency: float | None) -> tuple[float, float]:
        """(queue_high, queue_low), seconds, under this target latency."""
        high = (target_latency or DEFAULT_LATENCY) / 2 if self.queue_high is None else self.queue_high
        return high, high / 2 if self.queue_low is None else self.queue_low

    needs: ClassVar[Needs] = frozenset({(Rows.HOST, Metric.CPU), (Rows.OPERATOR, Metric.BACKLOG)})
    name: ClassVar = "ring"

    def plan(self, observation: Observation, memory: Watched | None = None) -> Plan:
        """Missing hosts, widths of stages without state, then one kind of change of the rings. memory: `Watched`."""
        return Round(self, observation, memory).plan()

    def unfit(self, context: Context) -> str:
        """Why it can do nothing; empty where it can."""
        if context.layout.apart:
            return "it divides state partitions, which operators apart do not have: simulate the dataflow fused"
        if not any(stage.keyed for stage in context.layout.stages):
            return "it divides the state of keyed operators among hosts, and the dataflow has none: use threshold"
        if self.host_type is not None and context.host_types and self.host_type not in context.host_types:
            return f"there is no host type {self.host_type!r} (there are: {', '.join(context.host_types)})"
        high, low = self.queues(context.target_latency)
        if low > high:
            return f"queue_low is {low:g} s; it must be at most queue_high, half of the target latency: {high:g} s"
        return ""
