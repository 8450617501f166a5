"""Conversion of observations, decisions and endings to and from JSON, which has neither NaN nor enums."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from elastream.core.action import Action, Outcome, Status, from_json
from elastream.core.decision import Decision, Fault, Proposal, Unknown
from elastream.core.frames import Frame
from elastream.core.guarding import GUARDS, GuardDecision
from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.recording.observer import Ending, Header, Json


def without_nan(value: Any) -> Any:
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


def written_observation(observation: Observation, before: Observation | None = None) -> Json:
    """Return an observation's entry.

    Guards' parts, compositions in force, rings and standby replicas appear only on change.
    """
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
        **({"alternates": _frame(observation.alternates)} if len(observation.alternates) else {}),
        **_guarded(observation, before),
        **_ringed(observation, before),
        **_copied(observation, before),
    }


def _ringed(observation: Observation, before: Observation | None) -> Json:
    if observation.rings == ({} if before is None else before.rings):
        return {}
    return {"rings": {operator: dict(ring.tokens) for operator, ring in observation.rings.items()}}


def _copied(observation: Observation, before: Observation | None) -> Json:
    standby = observation.standby
    replicas, was = _standby_replicas(observation), {} if before is None else _standby_replicas(before)
    written: Json = {}
    if replicas:
        written["behind"] = {}
        tasks, lag = observation.tasks, observation.tasks.column(Metric.STANDBY_LAG)
        for name in replicas:
            lags = lag[(tasks.operator == observation.operators.rows.get(name, -1)) & ~np.isnan(lag)]
            written["behind"][name] = float(lags.max()) if lags.size else math.nan
    if replicas != was:
        written["held"] = replicas
    if standby.why != ("" if before is None else before.standby.why):
        written["why"] = standby.why
    return {"standby": written} if written else {}


def _standby_replicas(observation: Observation) -> dict[str, dict[str, list[int]]]:
    replicas: dict[str, dict[str, list[int]]] = {}
    standby, tasks, hosts = observation.standby, observation.tasks.tasks, observation.hosts.ids
    for task, host in zip(standby.task.tolist(), standby.host.tolist(), strict=True):
        replicas.setdefault(tasks[task].operator, {}).setdefault(hosts[host], []).append(tasks[task].index)
    return {name: {host: sorted(each) for host, each in sorted(of.items())} for name, of in sorted(replicas.items())}


def _guarded(observation: Observation, before: Observation | None) -> Json:
    """Return the guards' part of an entry, as changes; `..._gone`: what no longer has any."""
    signals, standings = observation.signals, observation.standings
    were, stood = ({}, {}) if before is None else (before.signals, before.standings)
    read = {name: each for name, each in signals.items() if were.get(name) != each}
    stand = [each for name, each in standings.items() if each is not stood.get(name) and each != stood.get(name)]
    written: Json = {
        "signals": {name: [each.value, each.time] for name, each in read.items()},
        "signals_gone": [name for name in were if name not in signals],
        "standings": [
            {
                **asdict(each),
                **({"texts": None} if each.element in stood and stood[each.element].texts == each.texts else {}),
            }
            for each in stand
        ],
        "standings_gone": [name for name in stood if name not in standings],
        "effective": {
            query: asdict(each)
            for query, each in observation.effective.items()
            if before is None or before.effective.get(query) != each
        },
    }
    if observation.guards != (0 if before is None else before.guards):
        written["guards"] = observation.guards
    return {name: each for name, each in written.items() if each or name == "guards"}


def read_standing(fields: Mapping[str, Any], before: GuardDecision | None) -> GuardDecision:
    """Return a recorded standing. before: the element's previous one, whose texts it keeps if it has none."""
    return GuardDecision(
        fields["element"],
        tuple(fields["allowed"]),
        {name: math.nan if value is None else value for name, value in fields["values"].items()},
        {name: tuple(missing) for name, missing in fields["unknown"].items()},
        fields["texts"] or (before.texts if before is not None else {}),
        fields.get("by", GUARDS),
    )


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
    for name in ("operators", "edges", "stages", "host_types", "signals", "resumed"):
        fields[name] = tuple(fields.get(name, ()))
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

    def action(each: Mapping[str, Any], *excluded: str) -> Action:
        return from_json({name: value for name, value in each.items() if name not in excluded})

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
        tuple(Unknown.of_json(each) for each in fields.get("unknown", ())),
        fields.get("guards", 0),
        math.nan if fields.get("hosts") is None else float(fields["hosts"]),
        fields.get("mode", ""),
    )
