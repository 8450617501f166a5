"""The thesis's own design, simulated: runs of Figures 6.10 to 6.13, and section 6.6's failures."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from elastream.core.action import SetTokens
from elastream.core.frames import Floats
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.evaluation.trials import steered
from elastream.loads import constant, ramp, steps
from elastream.simulator.settings import HostFailure
from elastream_papers.thesis.resilience.reducers import Protection, ReducersPlant
from elastream_papers.thesis.resilience.scene import REPEATED, TEXT, ResilienceAssumptions, policy, ring_of

PERIOD = 1.0  # seconds between rounds: each measurement is used
# seconds and final messages/s per host of the load that finds the peak: about four times a host's capacity, slow enough to
# grow by at most a hundredth over PEAK
RAMP, MOST = 600.0, 50_000.0
PEAK = 5.0  # seconds to average a peak over
SKEWED_AT, SKEWED_UNTIL = 500.0, 900.0  # Fig. 6.11(a): skew from 500 s; its axis goes on until stable
# Messages/s of three hosts before the skew and of the skewed words: half, then three quarters of capacity. Fig. 6.11(a)
# shows 5,000 to 15,000 a host.
BALANCE_RATE, SKEW_RATE = 21_000.0, 9_000.0
GROWTH = (10_000.0, 60_000.0, 1000.0)  # Fig. 6.11(b): messages/s at begin and end, and seconds between
NEXT = 1.5  # simulation steps within which two long queues count as one
FIRST_HOSTS = 2  # hosts at the begin of Fig. 6.11(b), enough for r = 1
WARM = 30.0  # seconds before measuring a ring without changes
LENGTH = 154.0  # seconds of Fig. 6.12
KILLED_AT, SHOWN = 500.0, (300.0, 650.0)  # Fig. 6.13(a): time of the failure, and interval shown

Series = Mapping[str, Floats]  # by name, of the length of "seconds"


@dataclass(frozen=True, slots=True)
class ResilienceCase:
    """A run.

    Attributes:
        part: The figure.
        rate: Messages/s.
        together: Simultaneous checkpoints.
        failures: Hosts that fail at once, or in a row.
    """

    part: str
    hosts: int = 3
    replicas: int = 1
    rate: float = 6_000.0
    checkpoint: float = 2.0
    together: bool = False
    protection: Protection = Protection.PEERS
    failures: int = 0
    in_a_row: bool = False
    seed: int = 1
    assumptions: ResilienceAssumptions = field(default_factory=ResilienceAssumptions)


@dataclass(frozen=True, slots=True)
class ResilienceRun:
    """Results of a case: figures by name, and series to plot."""

    case: ResilienceCase
    figures: Mapping[str, float]
    series: Series = field(default_factory=dict)
    seconds: float = 0.0


def run_case(case: ResilienceCase) -> ResilienceRun:
    began = time.process_time()
    figures, series = PARTS[case.part](case)
    return ResilienceRun(case, figures, series, time.process_time() - began)


def _ring(case: ResilienceCase, loads: Mapping[str, ArrivalPattern], seconds: float, **more: object) -> ReducersPlant:
    return ring_of(
        case.assumptions, case.hosts, loads, seconds, case.seed, replicas=case.replicas, checkpoint=case.checkpoint,
        together=case.together, protection=case.protection, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _peak(case: ResilienceCase) -> tuple[Mapping[str, float], Series]:
    """Raise the rate until no host processes more (Fig. 6.10). sustained: last rate without queues."""
    plant = _ring(case, {TEXT: ramp(0, case.hosts * MOST, RAMP)}, RAMP)
    plant.advance(RAMP)
    rates = np.array([sum(sample.rate.values()) for sample in plant.watch.series])
    window = max(1, round(PEAK / plant.settings.monitor))
    full = min((node.behind[0][0] for node in plant.reducers.nodes.values() if node.behind), default=RAMP)
    return {
        "throughput": float(np.convolve(rates, np.full(window, 1 / window), "valid").max()),
        "sustained": case.hosts * MOST * full / RAMP,
    }, {}


def _balance(case: ResilienceCase) -> tuple[Mapping[str, float], Series]:
    """Skew the words of three hosts to the first one from 500 s on (Fig. 6.11(a))."""
    loads = {
        TEXT: constant(BALANCE_RATE, SKEWED_UNTIL),
        REPEATED: steps((0, SKEWED_AT), (SKEW_RATE, SKEWED_UNTIL - SKEWED_AT)),
    }
    plant = _ring(case, loads, SKEWED_UNTIL, max_hosts=case.hosts, skewed=(0.0, 1.0 / case.hosts))
    plant.advance(PERIOD)
    steered(plant, policy(case.assumptions), period=PERIOD, until=SKEWED_UNTIL, roll_back=False)
    series = _by_host(plant)
    longest = _waits(plant)
    unstable = series["seconds"][(longest >= _long(plant)) & (series["seconds"] > SKEWED_AT)]
    moves = [each for each in plant.reducers.takeovers if each.why == "tokens" and each.decided > SKEWED_AT]
    took = float(unstable[-1]) + plant.settings.monitor - SKEWED_AT if unstable.size else 0.0
    figures = {
        "balanced": took if not unstable.size or unstable[-1] < SKEWED_UNTIL - 1.5 * plant.settings.monitor else np.inf,
        "overloaded": float(unstable.size > 0),
        "neighbours": float(len({each.host for each in moves})),
        "moves": float(len(moves)),
        "twice": float(plant.exactness().twice),
        "lacking": float(plant.exactness().lacking),
    }
    return figures, series


def _long(plant: ReducersPlant) -> float:
    """Return seconds of a long queue: half of the target latency, as in the policy."""
    return (plant.context.target_latency or 0.0) / 2


def _waits(plant: ReducersPlant) -> Floats:
    """Return seconds of the longest queue at each measurement."""
    found = []
    for sample in plant.watch.series:
        waits = [queued / sample.rate[host] for host, queued in sample.queued.items() if sample.rate[host] > 0]
        found.append(max(waits, default=0.0))
    return np.array(found)


def _by_host(plant: ReducersPlant) -> dict[str, Floats]:
    """Return rate, queue, backup and CPU by host and measurement, NaN for absent hosts."""
    samples, hosts = plant.watch.series, sorted(plant.reducers.nodes, key=lambda name: (len(name), name))
    found = {"seconds": np.array([sample.time for sample in samples])}
    for host in hosts:
        for name in ("rate", "queued", "backups", "busy"):
            found[f"{name} {host}"] = np.array([getattr(sample, name).get(host, np.nan) for sample in samples])
    return found


def _growth(case: ResilienceCase) -> tuple[Mapping[str, float], Series]:
    """Raise the rate and let idle hosts join; a reaction ends with the replay (Fig. 6.11(b))."""
    first, last, seconds = GROWTH
    plant = _ring(case, {TEXT: ramp(first, last, seconds)}, seconds)
    plant.advance(PERIOD)
    steered(plant, policy(case.assumptions), period=PERIOD, until=seconds, roll_back=False)
    reactions, known = [], {f"h{number + 1}" for number in range(case.hosts)}
    for each in plant.reducers.takeovers:
        if each.why == "tokens" and each.host not in known:
            known.add(each.host)
            asked = plant.pool.leases[plant.pool.rows[each.host]].since
            reactions.append(each.restored - _long_since(plant, each.owners, asked))
    samples = plant.watch.series
    series = {
        "seconds": np.array([sample.time for sample in samples]),
        "offered": np.array([first + (last - first) * sample.time / seconds for sample in samples]),
        "throughput": np.array([sum(sample.rate.values()) for sample in samples]),
        "hosts": np.array([float(len(sample.rate)) for sample in samples]),
        "queued": np.array([sum(sample.queued.values()) for sample in samples]),
        "reactions": np.array(reactions),
    }
    figures = {
        "reaction": float(np.median(reactions)) if reactions else np.nan,
        "fastest": min(reactions, default=np.nan),
        "slowest": max(reactions, default=np.nan),
        "came": float(len(known) - case.hosts),
        "lacking": float(plant.exactness().lacking),
    }
    return figures, series


def _long_since(plant: ReducersPlant, hosts: Sequence[str], until: float) -> float:
    """Return since when a queue of these hosts is long; else `until`."""
    late, since = _long(plant), until
    for at in sorted(
        (at for host in hosts for at, behind in plant.reducers.nodes[host].behind if behind >= late), reverse=True
    ):
        if at <= until and at >= since - NEXT * plant.settings.step:
            since = at
    return since


def _move(case: ResilienceCase) -> tuple[Mapping[str, float], Series]:
    """Move half of an interval to a neighbour, at any moment between checkpoints (Fig. 6.11(c))."""
    at = WARM + case.checkpoint * float(np.random.default_rng([case.seed, 611]).random())
    plant = _ring(case, {TEXT: constant(case.rate, at + 60.0)}, at + 60.0)
    plant.advance(at)
    ring = plant.reducers.ring
    assert ring is not None
    host, heir = ring.nodes[:2]
    moved = ring.at(heir, (ring.tokens[host] + ring.length(host) / 2) % 1.0)
    plant.apply(SetTokens("count", tuple(moved.tokens.items())))
    plant.advance(at + 30.0)
    (about,) = [each for each in plant.reducers.takeovers if each.why == "tokens"]
    return {"latency": about.seconds, "tuples": about.tuples, "twice": float(about.twice)}, {}


def _delta(case: ResilienceCase) -> tuple[Mapping[str, float], Series]:
    """Measure the part of a host's state in a checkpoint (Fig. 6.12)."""
    plant = _ring(case, {TEXT: constant(case.rate, LENGTH)}, LENGTH)
    plant.advance(LENGTH)
    made = [each for each in plant.checkpoints.made if each.full > 0]
    host = made[0].host
    mine = [each for each in made if each.host == host]
    series = {
        "seconds": np.array([each.time for each in mine]),
        "ratio": np.array([each.delta / each.full for each in mine]),
    }
    last = [each.delta / each.full for each in made if each.time > LENGTH - 2 * case.checkpoint]
    return {"ratio": float(np.mean(last)), "state, MB": mine[-1].full / 1e6}, series


def _fault(case: ResilienceCase) -> tuple[Mapping[str, float], Series]:
    """Fail one of three hosts (Fig. 6.13(a))."""
    plant = _ring(case, {TEXT: constant(case.rate, SHOWN[1])}, SHOWN[1], faults=(HostFailure(KILLED_AT, "h1"),))
    plant.advance(SHOWN[1])
    recovered = [each for each in plant.reducers.takeovers if each.why == "recovery"]
    proof = plant.exactness()
    series = {name: column[_is_shown(plant)] for name, column in _by_host(plant).items()}
    return {"recovery": recovered[0].seconds, "twice": float(proof.twice), "lacking": float(proof.lacking)}, series


def _is_shown(plant: ReducersPlant) -> NDArray[np.bool_]:
    times = np.array([sample.time for sample in plant.watch.series])
    found: NDArray[np.bool_] = (times >= SHOWN[0]) & (times <= SHOWN[1])
    return found


def _recovery(case: ResilienceCase) -> tuple[Mapping[str, float], Series]:
    """Fail `failures` hosts at once, apart or in a row (Fig. 6.13(b), section 6.6)."""
    rng = np.random.default_rng([case.seed, case.failures, 613])
    at = WARM + case.checkpoint * float(rng.random())
    plant = _ring(case, {TEXT: constant(case.rate, at + 20.0)}, at + 20.0)
    plant.advance(at)
    ring = plant.reducers.ring
    assert ring is not None
    for place in failing(case, rng):
        node = plant.reducers.nodes[ring.nodes[place]]
        plant.fail(node, at)
    plant.advance(at + 40.0)
    recovered = [each for each in plant.reducers.takeovers if each.why == "recovery"]
    proof = plant.exactness()
    return {
        "recovery": max((each.seconds for each in recovered), default=np.nan),
        "mean": float(np.mean([each.seconds for each in recovered])) if recovered else np.nan,
        "twice": float(proof.twice),
        "repeated": float(sum(each.repeated for each in recovered)),
        "lacking": float(proof.lacking),
        "emitted": float(proof.emitted),
        "left over": float(proof.waiting + proof.unowned),
    }, {}


def failing(case: ResilienceCase, rng: np.random.Generator) -> list[int]:
    """Return ring places of the failing hosts: in a row, or at most r neighbours."""
    first = int(rng.integers(case.hosts))
    if case.in_a_row:
        return [(first + step) % case.hosts for step in range(case.failures)]
    groups = [
        list(range(start, start + case.replicas)) for start in range(0, case.hosts - case.replicas, case.replicas + 1)
    ]
    places = [place for group in groups for place in group]
    chosen = rng.permutation(len(places))[: case.failures]
    return [(first + places[number]) % case.hosts for number in chosen]


PARTS: Mapping[str, Callable[[ResilienceCase], tuple[Mapping[str, float], Series]]] = {
    "peak": _peak,
    "balance": _balance,
    "growth": _growth,
    "move": _move,
    "delta": _delta,
    "fault": _fault,
    "recovery": _recovery,
}
