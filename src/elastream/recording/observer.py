"""Who looks on while a run goes, and what they are told: what is run, what was seen and decided, how it ended."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

from elastream.model.cloud import Lease
from elastream.model.decision import Decision
from elastream.model.observation import Context, Observation

__all__ = ["Ending", "Header", "Json", "Observer", "describe_run"]

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Header:
    """What a run is about, JSON-ready, as known before it starts.

    plant: "spark" or "simulated". operators, edges, stages, host_types: a dict each, as `describe_run` makes them.
    started: wall-clock epoch seconds of time 0. environment: what it ran on, for figures that must say so.
    """

    flow: str
    policy: str
    plant: str = "simulated"
    target_latency: float | None = None
    max_hosts: int = 1_000_000
    operators: tuple[Json, ...] = ()
    edges: tuple[Json, ...] = ()
    stages: tuple[Json, ...] = ()
    host_types: tuple[Json, ...] = ()
    started: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended: "finished" (the load is done), "stopped" (by a person or its limit) or "failed".

    ledger: every lease, ended ones too. facts: further figures by name, such as `{"batches": 93, "records": 41200}`.
    """

    status: str
    time: float
    reason: str = ""
    ledger: tuple[Lease, ...] = ()
    facts: Mapping[str, float | str] = field(default_factory=dict)


class Observer(Protocol):
    """Someone who looks on. One that raises is told nothing more, and the run goes on."""

    def started(self, header: Header) -> None:
        """The run is about to start."""
        ...

    def observed(self, observation: Observation) -> None:
        """Once a monitoring period."""
        ...

    def decided(self, decision: Decision) -> None:
        """Once a planning round is done, and again with the same `round` when its `actual` is known."""
        ...

    def ended(self, ending: Ending) -> None:
        """The run is over."""
        ...


def describe_run(
    context: Context,
    *,
    policy: str,
    plant: str,
    started: float | None = None,
    environment: Mapping[str, Any] | None = None,
) -> Header:
    """The header of a run in `context`; `started` is now where it is not given."""
    graph = context.graph
    return Header(
        flow=graph.name,
        policy=policy,
        plant=plant,
        target_latency=context.target_latency,
        max_hosts=context.max_hosts,
        operators=tuple(
            {
                "name": o.name,
                "kind": o.kind.value,
                "alternates": [alternate.name for alternate in o.alternates],
                "max_duration": o.max_duration,
                "cores": o.cores,
                "memory": o.memory,
                "waits": o.waits,
            }
            for o in graph.operators
        ),
        edges=tuple(
            {
                "source": e.source,
                "target": e.target,
                "delivery": e.delivery.value,
                "durable": e.durable,
                "choice": e.choice,
            }
            for e in graph.edges
        ),
        stages=tuple(
            {"name": s.name, "segment": s.segment, "operators": list(s.operators), "keyed": s.keyed}
            for s in context.layout.stages
        ),
        host_types=tuple(asdict(host_type) for host_type in context.host_types.values()),
        started=time.time() if started is None else started,
        environment=dict(environment or {}),
    )
