"""Limits beyond which more hosts do not help: state partitions, and hosts that brought nothing.

One slot works on a state partition at a time, so a micro-batch lasts at least as long as the heaviest partitions of its
keyed stages. Other limits (source, sink, driver) show in the gain of more hosts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.frames import known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import counted
from elastream.dataflow.stages import Layout
from elastream.errors import DataflowError
from elastream.policies.common import chained
from elastream.policies.common.load_history import SHORTFALL_MEMORY_S, HostTrial, LoadHistory
from elastream.policies.common.provision import declared_cores
from elastream.policies.common.sizing import ROUNDS, SizingInputs
from elastream.units import format_rate

# Beginning of the remark if state partitions are the limit.
IN_VAIN = "more hosts cannot keep up with"
# Beginning of the remark if the last hosts did not help.
NO_HELP = "more hosts brought almost nothing"
# Beginning of the remark if the last hosts helped little.
HALF_HELP = "more hosts brought less than half of what they promised"
ON_TRIAL = "what the hosts that came last bring is seen before more are leased"
# Multiple of the cores from which the gain is judged, and the least elasticity of processed records or busy cores: near 1
# if hosts are the limit, near 0 if not.
MORE, LEAST_GAIN = 1.5, 0.25
# Part of the promised gain that new hosts must bring, or no more are leased for a while.
HALF = 0.5
# Seconds without further hosts after a low gain: enough for caches, skew and state on its way to change.
REST_S = 300.0
# Busy part of the cores that state partitions can fill. From this part on their number is the limit, not source, sink or
# driver.
FILLED = 0.5
# Multiple of its stage's mean from which the remark names the heaviest partition instead of their number.
HEAVY = 2.0


@dataclass(frozen=True, slots=True)
class Bound:
    """Most cores of speed 1 that a query can keep busy, and the reason as a sentence."""

    cores: float
    why: str


def reach(observation: Observation, *, measured: bool) -> Bound | None:
    """Return the least bound of the queries with state; None if there is none.

    Args:
        measured: True to use each partition's measured part of its stage's work. False assumes equal parts, which never
            bounds too much.
    """
    context = observation.context
    if not context.partitions:
        return None
    work = _work(observation)
    total = math.fsum(work.values())
    if not total > 0:
        return None
    _, slot = observation.cores.slots(observation.working or tuple(observation.leases))
    bound: Bound | None = None
    for segment in context.layout.segments:
        longest, worst, sentence = 0.0, 0.0, ""
        for stage in segment.stages:
            if not (count := context.partitions.get(stage.name, 0)):
                continue
            part = math.fsum(work.get(each, 0.0) for each in stage.operators) / total
            share, number = _heaviest(observation, stage.name, count) if measured else (1 / count, -1)
            longest += (alone := part * share)
            if alone > worst:
                worst, sentence = alone, _sentence(stage.name, count, share, number)
        if longest > 0 and (bound is None or slot / longest < bound.cores):
            bound = Bound(slot / longest, sentence)
    return bound


def width_binds(observation: Observation) -> str:
    """Return why more state partitions would help late records, or ""."""
    if not observation.late or observation.beyond_hosts or observation.coming:
        return ""
    bound, heavy = reach(observation, measured=False), reach(observation, measured=True)
    busy = known_sum(observation.operators.column(Metric.BUSY_CORES))
    if bound is None or not busy >= FILLED * bound.cores or observation.cores.of(observation.usable) < bound.cores:
        return ""
    return "" if heavy is None or heavy.why != bound.why else bound.why  # one heavy partition cannot be divided


def _work(observation: Observation) -> Mapping[str, float]:
    """Return the cores that each operator needs, relative to the others; empty if unknown."""
    graph, frame = observation.context.graph, observation.operators
    busy = {o.name: frame.value(o.name, Metric.BUSY_CORES) for o in graph.operators if not o.waits}
    if working := {name: cores for name, cores in busy.items() if cores > 0}:
        return working
    try:
        return declared_cores(graph, {source.name: 1.0 for source in graph.sources}, composition=observation.composition)
    except DataflowError:
        return {}


def within_reach(
    observation: Observation, need: float, available: float, base: float, load: SizingInputs, history: LoadHistory
) -> tuple[float, LoadHistory, str]:
    """Limit `need` to what state partitions can keep busy, if they cannot process the rate.

    Counts their number, and their lowest weight in the last `ROUNDS` rounds, because one long task says little. The reason
    is given once the limit has held for `ROUNDS` rounds.

    Returns:
        The limited need, the history after this round, and the reason, or empty.
    """
    heavy = None if load.cold else reach(observation, measured=True)
    if heavy is not None or history.partition_bounds:
        bounds = () if heavy is None else (*history.partition_bounds, heavy.cores)[-ROUNDS:]
        history = history.with_bounds(bounds)
    if rounds_beyond := history.rounds_beyond:
        history = replace(history, rounds_beyond=0)
    if not need > available or (bound := reach(observation, measured=False)) is None:
        return need, history, ""
    if heavy is not None and len(history.partition_bounds) == ROUNDS and max(history.partition_bounds) < bound.cores:
        bound = replace(heavy, cores=max(history.partition_bounds))
    if not base > bound.cores:
        return need, history, ""
    history = replace(history, rounds_beyond=rounds_beyond + 1)
    # The first records cost far more than later ones, as do those of small batches and new hosts: they prove no limit.
    proven = history.rounds_beyond >= ROUNDS and (load.declares or not load.cold)
    return min(need, bound.cores), history, bound.why if proven else ""


# | trial | this round | then |
# | --- | --- | --- |
# | none, or half an hour old | behind | begins |
# | begun | fewer than `MORE` times the cores, or not behind | continues |
# | begun | behind with as many, gain | begins again |
# | begun | low gain, hosts younger than a window | continues |
# | begun | low gain | begins again and rests |
# | rests | as many cores, less than `REST_S` later | rests |
# | begun | no gain, hosts younger than a window | waits |
# | begun | no gain | ends without gain |
# | ended | less than half an hour later | stays ended |
def after_trial(
    observation: Observation, load: SizingInputs, history: LoadHistory, behind: float, *, equal: bool
) -> tuple[LoadHistory, str]:
    """Judge the gain of hosts that came after a query fell behind.

    Once there are `MORE` times the cores, their gain over a window decides if more hosts are leased. Without a gain, none
    are leased for half an hour.

    Returns:
        The history after this round, and why no hosts are leased beyond the metered work, or empty.
    """
    if history.trial is not None and observation.time - history.trial.time > SHORTFALL_MEMORY_S:
        history = replace(history, trial=None)
    trial = history.trial
    if trial is not None and trial.no_gain:
        return history, trial.no_gain
    cores = chained.shared_capacity(observation, observation.usable, equal=equal)
    if trial is None or cores < trial.cores:
        begins = behind > 1 and cores > 0
        return (replace(history, trial=_trial(observation, load, history, cores)) if begins else history), ""
    if trial.low_gain and observation.time - trial.time < REST_S:
        return history, trial.low_gain
    if cores < MORE * trial.cores or not behind > 1 or not load.steady_batches:
        return history, ""
    now = _trial(observation, load, history, cores)
    young = bool(observation.coming) or not load.settled
    if _has_gain(trial, now):
        low_gain = low_gain_reason(trial, now, behind)
        if low_gain and young:
            return history, ""
        return replace(history, trial=replace(now, low_gain=low_gain)), low_gain
    if young:
        return history, ON_TRIAL
    message = (
        f"{NO_HELP}: {trial.cores:.3g} cores processed {format_rate(trial.processed)} and {trial.busy:.3g} were busy, "
        f"{cores:.3g} cores {format_rate(now.processed)} and {now.busy:.3g}; what holds it up is its source, its sink, the "
        "driver or what each batch costs"
    )
    return replace(history, trial=replace(now, no_gain=message)), message


def _has_gain(before: HostTrial, now: HostTrial) -> bool:
    pairs = ((now.processed, before.processed), (now.busy, before.busy))
    growth = [math.log(new / old) for new, old in pairs if min(new, old) > 0]
    return len(growth) < 2 or max(growth) >= LEAST_GAIN * math.log(now.cores / before.cores)


def low_gain_reason(before: HostTrial, now: HostTrial, behind: float) -> str:
    """Return a sentence if the new cores bring less than half of their promise, else "".

    They promise records in proportion to cores, but at most what arrives: `behind` times what is processed now.
    """
    promised = min(before.processed * now.cores / before.cores, now.processed * max(behind, 1.0))
    brought = now.processed - before.processed
    if not now.processed > 0 or not brought < HALF * (promised - before.processed):
        return ""
    return (
        f"{HALF_HELP}: {before.cores:.3g} cores processed {format_rate(before.processed)}, {now.cores:.3g} process "
        f"{format_rate(now.processed)} of {format_rate(promised)}"
    )


def _trial(observation: Observation, load: SizingInputs, history: LoadHistory, cores: float) -> HostTrial:
    recent = history.times > observation.time - load.window
    measured = [row[recent & ~np.isnan(row)] for row in (history.processed, history.busy)]
    processed, busy = (float(row.mean()) if row.size else math.nan for row in measured)
    return HostTrial(cores, processed, busy, observation.time)


def _heaviest(observation: Observation, operator: str, count: int) -> tuple[float, int]:
    """Return the heaviest partition's part of its stage's work and its number; -1 if unknown."""
    tasks = observation.tasks
    mine = tasks.rows_of(observation.operators.rows.get(operator, -1))
    busy = tasks.column(Metric.BUSY_CORES)[mine]
    total = np.add.reduce(busy)
    if busy.size < count or not total > 0:
        measured = busy[~np.isnan(busy)]
        if measured.size < count or not measured.sum() > 0:
            return 1 / count, -1
    heaviest = int(busy.argmax())
    return float(busy[heaviest] / total), int(tasks.index[mine[heaviest]])


def _sentence(operator: str, count: int, share: float, number: int) -> str:
    if number >= 0 and share * count > HEAVY:
        return (
            f"state partition {number} of {operator} has {share:.0%} of its work, and one key, or several in one "
            "partition, cannot be divided: pre-aggregate before that key, or use hosts with faster cores"
        )
    few = counted(count, "state partition")
    return f"{operator} has {few}, and each keeps one slot busy at most: give more (state_partitions)"


def beyond_partitions(layout: Layout, cores: Mapping[str, float], slot: float, partitions: int) -> str:
    """Return why no number of hosts can do the work; empty if some number can.

    Args:
        cores: Cores of speed 1 by operator.
        slot: Cores of one slot.
    """
    if layout.unchained:
        return ""
    for segment in layout.segments:
        busy = {
            stage.name: math.fsum(cores.get(name, 0.0) for name in stage.operators)
            for stage in segment.stages
            if stage.keyed
        }
        if busy and math.fsum(busy.values()) > partitions * slot:
            most = max(busy, key=lambda name: busy[name])
            return (
                f"{math.fsum(busy.values()):.3g} cores of {most!r} are more than any number of hosts holds: "
                f"{_sentence(most, partitions, 1 / partitions, -1)}"
            )
    return ""
