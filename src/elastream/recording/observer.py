"""The Observer protocol of a run and its messages: header, observations, decisions, ending."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from elastream.core.decision import Decision
from elastream.core.hosts import Lease
from elastream.core.observation import Context, Observation
from elastream.core.wording import clock, duration_text
from elastream.dataflow.key_table import key_columns

Json: TypeAlias = dict[str, Any]
# Beginning of the reason of a run stopped by its time limit.
LIMITED = "its limit of"


@dataclass(frozen=True, slots=True)
class Header:
    """Description of a run before its start, JSON-ready. `describe_run` builds it."""

    flow: str
    policy: str
    plant: str = "simulated"  # "spark" or "simulated"
    target_latency: float | None = None
    max_hosts: int = 1_000_000
    operators: tuple[Json, ...] = ()  # a dict each, as for edges, stages, host_types and the dataflow's signals
    edges: tuple[Json, ...] = ()
    stages: tuple[Json, ...] = ()
    host_types: tuple[Json, ...] = ()
    started: float = 0.0  # epoch seconds of time 0
    environment: Mapping[str, Any] = field(default_factory=dict)  # machine and software versions
    signals: tuple[Json, ...] = ()
    # one entry per resumption: its `time`; `seen`, the last time before; hosts `adopted` and `gone`; `batches`, the last
    # committed one by query
    resumed: tuple[Json, ...] = ()
    # totals of all earlier parts of a recording, and the `time` of their end; empty at the beginning
    before: Mapping[str, Any] = field(default_factory=dict)

    @property
    def began(self) -> float:
        """Return when this driver began (seconds)."""
        return float(self.resumed[-1]["time"]) if self.resumed else 0.0

    @property
    def resumptions(self) -> tuple[str, ...]:
        """Text of each resumption: when, after how long, from which batch and with which hosts."""
        return tuple(map(_resumption, self.resumed))


def _resumption(note: Json) -> str:
    batches = note.get("batches", {})
    behind = ", ".join(f"{number} of {query}" if len(batches) > 1 else str(number) for query, number in batches.items())
    hosts = "".join(f"; {', '.join(note[what])} {what}" for what in ("adopted", "gone") if note.get(what))
    away = duration_text(max(0.0, note["time"] - note["seen"]))
    text = f"at {clock(note['time'])}, {away} after its driver was last seen"
    return text + (f", behind batch {behind}" if behind else "") + hosts


@dataclass(frozen=True, slots=True)
class Ending:
    status: str  # "finished" (the load is processed), "stopped" (by the user or a time limit) or "failed"
    time: float
    reason: str = ""
    ledger: tuple[Lease, ...] = ()  # all leases, ended ones included
    # further figures by name, such as `{"batches": 93, "records": 41200}`
    facts: Mapping[str, float | str] = field(default_factory=dict)


class Observer(Protocol):
    """Receives the events of a run; ignores them by default. An observer that raises is detached, and the run continues."""

    def started(self, header: Header) -> None:
        return

    def observed(self, observation: Observation) -> None:
        """Receive an observation, once per monitoring period."""
        return

    def decided(self, decision: Decision) -> None:
        """Receive a decision after each planning round, and again with the same `round` when its `actual` is known."""
        return

    def ended(self, ending: Ending) -> None:
        return


def describe_run(
    context: Context,
    *,
    policy: str,
    plant: str,
    started: float,
    environment: Mapping[str, Any] | None = None,
    resumed: Sequence[Json] = (),
) -> Header:
    """Return the header of a run in `context`. started: epoch seconds of time 0."""
    graph = context.graph
    return Header(
        flow=graph.name,
        policy=policy,
        plant=plant,
        target_latency=context.target_latency,
        max_hosts=context.max_hosts,
        operators=tuple(
            {
                "kind": operator.kind.value,
                "alternates": [alternate.name for alternate in operator.alternates],
                "values": [alternate.value for alternate in operator.alternates],
                "selects": key_columns(graph, operator),
                "governed": operator.load is not None,
                **{name: getattr(operator, name) for name in ("name", "max_duration", "cores", "memory", "waits")},
            }
            for operator in graph.operators
        ),
        edges=tuple({**asdict(edge), "delivery": edge.delivery.value} for edge in graph.edges),
        stages=tuple({**asdict(stage), "operators": list(stage.operators)} for stage in context.layout.stages),
        host_types=tuple(asdict(host_type) for host_type in context.host_types.values()),
        started=started,
        environment=dict(environment or {}),
        signals=tuple({"name": each.name, "kind": each.kind.value, "stale": each.stale} for each in graph.signals.values()),
        resumed=tuple(resumed),
    )


def described_further(header: Header, context: Context, leases: Iterable[Lease]) -> Header:
    """Return the header extended by what runs in `context`; earlier operators, edges, stages and host types stay.

    leases: their types are added, as executors present in a session have types that cannot be leased.
    """
    now = describe_run(context, policy=header.policy, plant=header.plant, started=header.started)
    types = {lease.type.name: asdict(lease.type) for lease in leases}
    return replace(
        header,
        operators=_joined(header.operators, now.operators, "name"),
        edges=_joined(header.edges, now.edges, "source", "target"),
        stages=_joined(header.stages, now.stages, "name"),
        host_types=_joined(header.host_types, (*now.host_types, *types.values()), "name"),
        signals=_joined(header.signals, now.signals, "name"),
    )


def described_before(before: Header, now: Header) -> Header:
    """Return `now` with the host types of `before`, as earlier leases name them, and with its totals of earlier parts."""
    return replace(now, host_types=_joined(before.host_types, now.host_types, "name"), before=before.before)


def _joined(before: Sequence[Json], now: Sequence[Json], *key: str) -> tuple[Json, ...]:
    return tuple({tuple(each[name] for name in key): each for each in (*before, *now)}.values())
