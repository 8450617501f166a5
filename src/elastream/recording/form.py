"""Converts observations, decisions and endings to and from JSON, which has neither NaN nor enums."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from elastream.model.action import Action, Outcome, Status, from_json
from elastream.model.cloud import Billing, HostState, HostType, Lease
from elastream.model.decision import Decision, Fault, Proposal, Unknown
from elastream.model.latency import Basis
from elastream.model.metrics import Metric
from elastream.model.observation import Frame, Observation
from elastream.model.promises import Rows
from elastream.recording.observer import Ending, Header, Json

__all__ = [
    "host_types",
    "read_basis",
    "read_decision",
    "read_ending",
    "read_header",
    "read_lease",
    "without_nan",
    "written_ending",
    "written_observation",
]


def without_nan(value: Any) -> Any:
    """`value` with every NaN and infinity replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(each) for each in value]
    return value


def _frame(frame: Frame) -> Json:
    return {"ids": list(frame.ids), "values": _columns(frame)}


def _columns(frame: Frame) -> Json:
    return {metric.value: frame.column(metric).tolist() for metric in frame.metrics}


def written_observation(observation: Observation) -> Json:
    tasks = observation.tasks
    return {
        "kind": "observation",
        "time": observation.time,
        "application": _frame(observation.application),
        "operators": _frame(observation.operators),
        "hosts": _frame(observation.hosts),
        "tasks": {
            "operator": tasks.operator.tolist(),
            "index": tasks.index.tolist(),
            "host": tasks.host.tolist(),
            "values": _columns(tasks),
        },
        "links": _frame(observation.links),
        "leases": [_lease(lease) for lease in observation.leases.values()],
        "composition": asdict(observation.composition),
        "batches": [list(batch) for batch in observation.batches],
        "alarms": [asdict(alarm) for alarm in observation.alarms],
        "latency_basis": {source: basis.value for source, basis in observation.latency_basis.items()},
    }


def read_basis(written: Mapping[str, str]) -> dict[str, Basis]:
    """What latency was measured from at a recorded observation, by source."""
    return {source: Basis(value) for source, value in written.items()}


def _lease(lease: Lease) -> Json:
    return {
        "host": lease.host,
        "type": lease.type.name,
        "since": lease.since,
        "state": lease.state.value,
        "history": [[at, state.value] for at, state in lease.history],
        "until": lease.until,
    }


def written_ending(ending: Ending) -> Json:
    return {
        "kind": "end",
        "status": ending.status,
        "time": ending.time,
        "reason": ending.reason,
        "ledger": [_lease(lease) for lease in ending.ledger],
        "facts": dict(ending.facts),
    }


def read_header(fields: Json) -> Header:
    for name in ("operators", "edges", "stages", "host_types"):
        fields[name] = tuple(fields[name])
    return Header(**fields)


def host_types(header: Header | None) -> dict[str, HostType]:
    each = header.host_types if header else ()
    return {fields["name"]: HostType(**{**fields, "billing": Billing(**fields["billing"])}) for fields in each}


def read_lease(fields: Mapping[str, Any], types: Mapping[str, HostType]) -> Lease:
    return Lease(
        fields["host"],
        types[fields["type"]],
        fields["since"],
        HostState(fields["state"]),
        tuple((at, HostState(state)) for at, state in fields["history"]),
        fields["until"],
    )


def read_ending(fields: Mapping[str, Any], types: Mapping[str, HostType]) -> Ending:
    ledger = tuple(read_lease(lease, types) for lease in fields["ledger"])
    return Ending(fields["status"], float(fields["time"]), fields["reason"], ledger, fields["facts"])


def read_decision(fields: Mapping[str, Any]) -> Decision:
    def numbers(name: str) -> dict[str, float]:
        return {key: math.nan if value is None else float(value) for key, value in fields[name].items()}

    def action(each: Mapping[str, Any], *besides: str) -> Action:
        return from_json({name: value for name, value in each.items() if name not in besides})

    return Decision(
        fields["round"],
        float(fields["time"]),
        fields["policy"],
        numbers("seen"),
        tuple(Proposal(action(each, "by", "refused"), each["by"], each["refused"]) for each in fields["proposals"]),
        tuple(
            Outcome(action(each, "status", "reason"), Status(each["status"]), each["reason"]) for each in fields["outcomes"]
        ),
        numbers("predicted"),
        numbers("actual"),
        float(fields["seconds"]),
        fields["note"],
        tuple(Fault(**each) for each in fields.get("faults", ())),
        tuple(
            Unknown(**{**each, "metric": Metric(each["metric"]), "rows": Rows(each["rows"])})
            for each in fields.get("unknown", ())
        ),
    )
