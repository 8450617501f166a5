"""Decides from an observation whether an accepted action is in force, or cannot come into force."""

import math
from collections.abc import Mapping

from elastream.core.action import (
    Action,
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    Outcome,
    ReleaseHost,
    RenewHost,
    SetKeyTable,
    SetParallelism,
    SetTokens,
    Status,
    Switch,
    SwitchAlternate,
    SwitchEdge,
)
from elastream.core.composition import holder, refusal
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Composition, Observation
from elastream.core.ring import Ring


def in_force(action: Action, observation: Observation) -> bool:
    """Whether `observation` shows the effect of `action`."""
    leases = observation.leases
    match action:
        case SwitchAlternate() | SwitchEdge() | SetKeyTable():
            return _effective(action, observation)
        case SetParallelism(operator, instances):
            return parallelism(observation, operator) == instances
        case SetTokens(operator, tokens):
            return observation.follows(operator, Ring(dict(tokens)))
        case MoveTask(task, host):
            row = observation.tasks.rows.get(str(task))
            return row is not None and (at := int(observation.tasks.host[row])) >= 0 and observation.hosts.ids[at] == host
        case LeaseHost(host):
            return host in leases and leases[host].state in (HostState.RUNNING, HostState.DRAINING)
        case CancelDrain(host):
            return host in leases and leases[host].state is HostState.RUNNING
        case DrainHost(host):
            return host not in leases or leases[host].state in (HostState.DRAINING, HostState.RELEASING)
        case ReleaseHost(host):
            return host not in leases
        case RenewHost(host):
            return host in leases


def wanted(action: Switch, observation: Observation) -> bool:
    """Whether the composition that is wanted has `action`, be it in effect or not."""
    return _has(observation.composition, action)


def _effective(action: Switch, observation: Observation) -> bool:
    """Whether the last committed batch of the query that holds the element ran under `action`.

    A plant that does not report what is in effect does its switches at once: there the composition wanted is it.
    """
    if not observation.effective:
        return wanted(action, observation)
    layout = observation.context.layout
    if refusal(layout.graph, action):
        return False
    composition = observation.effective.get(holder(layout, action))
    return composition is not None and _has(composition, action)


def _has(composition: Composition, action: Switch) -> bool:
    match action:
        case SwitchAlternate(operator, alternate):
            return composition.alternates.get(operator) == alternate
        case SwitchEdge(choice, target):
            return composition.choices.get(choice) == target
        case SetKeyTable(operator, table):
            return composition.tables.get(operator, 0) == table


def progress(action: Action, observation: Observation, before: Mapping[str, Lease]) -> Outcome | None:
    """DONE where `action` is in force, FAILED where it cannot come into force any more, None while it is under way.

    before: leases of the last observation, which tell a host that never came from one that was lost.
    """
    if isinstance(action, Switch) and not observation.effective:
        return None  # it was accepted, so the plant does report what is in effect: no batch was committed yet
    if in_force(action, observation):
        return Outcome(action, Status.DONE)
    match action:
        case LeaseHost(host) | CancelDrain(host) | RenewHost(host) | MoveTask(_, host) if host not in observation.leases:
            return Outcome(action, Status.FAILED, _missing(host, before.get(host)))
        case SetTokens(_, tokens):
            gone = [host for host, _ in tokens if host not in observation.leases]
            return Outcome(action, Status.FAILED, _missing(gone[0], before.get(gone[0]))) if gone else None
    return None


def _missing(host: str, last: Lease | None) -> str:
    """Why `host` is not leased any more, as far as its lease said when it was last seen."""
    if last is None or last.state is not HostState.REQUESTED:
        return f"host {host} was lost" if last is not None else f"host {host} is not leased"
    return f"host {host} was requested and did not come" + (f": {last.note}" if last.note else "")


def parallelism(observation: Observation, operator: str) -> float:
    """Instances of `operator`: as composed, else as measured; NaN where unknown."""
    wanted = observation.composition.parallelism.get(operator, math.nan)
    return wanted if not math.isnan(wanted) else observation.operators.value(operator, Metric.PARALLELISM)
