"""How far hosts can help: where state partitions are what bounds a query, and where hosts that came have brought nothing.

State partitions are fixed, and each is worked on by one slot at a time: a micro-batch lasts at least as long as the
heaviest partition of each of its keyed stages, one after the other, on however many hosts. So there is a rate beyond which
hosts are leased in vain. What else may hold a query up (its source, its sink, the driver, what every batch costs) nobody
measures: that shows in what more hosts bring.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import counted
from elastream.dataflow.stages import Layout
from elastream.errors import DataflowError
from elastream.policies.common import chained as fused
from elastream.policies.common.load_history import AVOIDED, HostTrial, Seen
from elastream.policies.common.provision import declared_cores
from elastream.policies.common.sizing import ROUNDS, LoadFigures
from elastream.units import format_rate

IN_VAIN = "more hosts cannot keep up with"
"""How a policy says that it leases none because they would be of no use."""
NO_HELP = "more hosts brought next to nothing"
"""How a policy says that it leases no more because the last ones did not help."""
HALF_HELP = "more hosts brought less than half of what they promised"
"""How a policy says that the last ones helped little, and why it leases no more for a while."""
ON_TRIAL = "what the hosts that came last bring is seen before more are leased"
MORE, LEAST_GAIN = 1.5, 0.25
"""Multiple of the cores from which on what they bring is judged, and the least elasticity of what is processed, or kept
busy: of hosts that hold a query up it is near 1, of those that do not near 0."""
HALF = 0.5
"""Part of what hosts that came promise to process more that they bring at least, or no more are leased for a while."""
REST = 300.0
"""Seconds for which no more hosts are leased than the metered work needs, after some that brought less than half of what
they promised: long enough for what they bring to change, where that was a matter of caches, skew or state on its way."""
HEAVY = 2.0
"""Times the mean of its stage from which on the heaviest partition is named, in place of their number: keys are uneven."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Most cores that a query's work can keep busy, of speed 1, and what bounds it, as a sentence."""

    cores: float
    why: str


def reach(observation: Observation, *, measured: bool) -> Bound | None:
    """The least of what the queries with state can keep busy; None without state, or where nothing is known of their work.

    Each stage's part of the work is that of its busy cores, before there are any that of the declared costs. measured:
    whether a partition's part of its stage's work is what it was now, so that heavy keys count; else all are equal, which
    is no more than the truth.
    """
    context = observation.context
    if not context.partitions:
        return None
    work = _work(observation)
    total = math.fsum(work.values())
    if not total > 0:
        return None
    _, slot = observation.cores.slots(observation.working or tuple(observation.leases))
    found: Bound | None = None
    for segment in context.layout.segments:
        longest, worst, said = 0.0, 0.0, ""
        for stage in segment.stages:
            if not (count := context.partitions.get(stage.name, 0)):
                continue
            part = math.fsum(work.get(each, 0.0) for each in stage.operators) / total
            share, number = _heaviest(observation, stage.name, count) if measured else (1 / count, -1)
            longest += (alone := part * share)
            if alone > worst:
                worst, said = alone, _said(stage.name, count, share, number)
        if longest > 0 and (found is None or slot / longest < found.cores):
            found = Bound(slot / longest, said)
    return found


def _work(observation: Observation) -> Mapping[str, float]:
    """Cores by operator, of those that work, in proportion; empty where nothing is known."""
    graph, frame = observation.context.graph, observation.operators
    busy = {o.name: frame.value(o.name, Metric.BUSY_CORES) for o in graph.operators if not o.waits}
    if known := {name: cores for name, cores in busy.items() if cores > 0}:
        return known
    try:
        return declared_cores(graph, {source.name: 1.0 for source in graph.sources}, composition=observation.composition)
    except DataflowError:
        return {}


def within_reach(
    observation: Observation, need: float, there: float, base: float, load: LoadFigures, seen: Seen
) -> tuple[float, Seen, str]:
    """(`need` of cores, no more than state partitions can keep busy where they cannot process the rate; `seen` after this
    round; what bounds it, empty where nothing does).

    By their number, and by how heavy they were in the last `ROUNDS` rounds: in the one in which they were least so, since
    one long task says little. What bounds it is said once it has in as many rounds in a row. there: cores that hosts have.
    base: those that the rate works.
    """
    heavy = None if load.cold else reach(observation, measured=True)
    if heavy is not None or seen.reaches:
        seen = replace(seen, reaches=() if heavy is None else (*seen.reaches, heavy.cores)[-ROUNDS:])
    beyond, seen = seen.beyond, replace(seen, beyond=0)
    if not need > there or (bound := reach(observation, measured=False)) is None:
        return need, seen, ""
    if heavy is not None and len(seen.reaches) == ROUNDS and max(seen.reaches) < bound.cores:
        bound = replace(heavy, cores=max(seen.reaches))
    if not base > bound.cores:
        return need, seen, ""
    seen = replace(seen, beyond=beyond + 1)
    # The first records work far more than later ones; so do those of a small batch, by which a jump of the rate is judged
    # first, and those of hosts that have just come. Nothing is said by them.
    proven = seen.beyond >= ROUNDS and (load.declares or not load.cold)
    return min(need, bound.cores), seen, bound.why if proven else ""


def after_trial(observation: Observation, load: LoadFigures, seen: Seen, behind: float, *, equal: bool) -> tuple[Seen, str]:
    """(`seen` after this round; why no more hosts are leased than the metered work needs, empty where nothing is against).

    A trial begins when a query falls behind. Once there are `MORE` times the cores, no more come before their effect is
    seen over a whole window: if it still falls behind, and neither more is processed nor are more cores busy (records may
    cost more by then), then hosts are not what holds it up, and none are leased for that for half an hour. behind: of
    `LoadFigures`. equal: as for `fused.shared_capacity`.

    | trial | this round | then |
    | --- | --- | --- |
    | none, or half an hour old | it falls behind | begins |
    | begun | fewer cores than `MORE` times, or it is not behind | goes on |
    | begun | behind with as many, and more is processed or busy | begins anew |
    | begun | the same, less than half of what was promised, and they have not been there for a window | goes on |
    | begun | less than half of what was promised | begins anew, and rests |
    | rests | as many cores as then, less than `REST` later | rests |
    | begun | nothing more is, and they have not been there for a window | waits |
    | begun | nothing more is | in vain |
    | in vain | fewer than half an hour later | in vain |
    """
    trial, there = seen.trial, fused.shared_capacity(observation, observation.usable, equal=equal)
    if trial is not None and observation.time - trial.time > AVOIDED:
        seen, trial = replace(seen, trial=None), None
    if trial is not None and trial.vain:
        return seen, trial.vain
    if trial is None or there < trial.cores:
        if not behind > 1:
            return seen, ""
        processed, busy = _lately(observation, load, seen)
        return replace(seen, trial=HostTrial(there, processed, busy, observation.time)), ""
    if trial.weak and observation.time - trial.time < REST:
        return seen, trial.weak
    if there < MORE * trial.cores or not behind > 1 or not load.steady_batches:
        return seen, ""
    processed, busy = _lately(observation, load, seen)
    now = HostTrial(there, processed, busy, observation.time)
    young = bool(observation.coming) or not load.settled
    grown = [math.log(new / old) for new, old in ((processed, trial.processed), (busy, trial.busy)) if min(new, old) > 0]
    if len(grown) < 2 or max(grown) >= LEAST_GAIN * math.log(there / trial.cores):
        weak = _weak(trial, now, behind)
        if weak and young:
            return seen, ""
        return replace(seen, trial=replace(now, weak=weak)), weak
    if young:
        return seen, ON_TRIAL
    said = (
        f"{NO_HELP}: {trial.cores:.3g} cores processed {format_rate(trial.processed)} and {trial.busy:.3g} were busy, "
        f"{there:.3g} cores {format_rate(processed)} and {busy:.3g}; what holds it up is its source, its sink, the driver "
        "or what each batch costs"
    )
    return replace(seen, trial=replace(now, vain=said)), said


def _weak(before: HostTrial, now: HostTrial, behind: float) -> str:
    """That `now` less than half is processed of what the cores that came since `before` promised; empty where it is more,
    or where nothing ended in the window.

    They promise as much more as there are more of them, but no more than arrives: `behind` times what is processed now.
    """
    promised = min(before.processed * now.cores / before.cores, now.processed * max(behind, 1.0))
    brought = now.processed - before.processed
    if not now.processed > 0 or not brought < HALF * (promised - before.processed):
        return ""
    return (
        f"{HALF_HELP}: {before.cores:.3g} cores processed {format_rate(before.processed)}, {now.cores:.3g} process "
        f"{format_rate(now.processed)} of {format_rate(promised)}"
    )


def _lately(observation: Observation, load: LoadFigures, seen: Seen) -> tuple[float, float]:
    """(Records/s processed, cores busy) on average of the window; NaN if unknown."""
    recent = seen.times > observation.time - load.window
    known = [row[recent & ~np.isnan(row)] for row in (seen.processed, seen.busy)]
    processed, busy = (float(row.mean()) if row.size else math.nan for row in known)
    return processed, busy


def _heaviest(observation: Observation, operator: str, count: int) -> tuple[float, int]:
    """(part of its stage's work that the heaviest partition has, its number); equal parts where they are not known."""
    tasks = observation.tasks
    mine = tasks.operator == observation.operators.rows.get(operator, -1)
    busy = tasks.column(Metric.BUSY_CORES)[mine]
    known = busy[~np.isnan(busy)]
    if known.size < count or not known.sum() > 0:
        return 1 / count, -1
    heaviest = int(np.argmax(busy))
    return float(busy[heaviest] / busy.sum()), int(tasks.index[mine][heaviest])


def _said(operator: str, count: int, share: float, number: int) -> str:
    if number >= 0 and share * count > HEAVY:
        return (
            f"state partition {number} of {operator} has {share:.0%} of its work, and one key, or several in one "
            "partition, cannot be divided: aggregate in part before that key, or use hosts with faster cores"
        )
    few = counted(count, "state partition")
    return f"{operator} has {few}, and each keeps one slot busy at most: give more (state_partitions)"


def beyond_partitions(layout: Layout, cores: Mapping[str, float], slot: float, partitions: int) -> str:
    """Why no number of hosts holds work of `cores` (of speed 1, by operator); empty where some does. slot: cores of one."""
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
                f"{_said(most, partitions, 1 / partitions, -1)}"
            )
    return ""
