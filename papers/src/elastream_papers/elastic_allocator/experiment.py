"""Elastic Allocator's evaluation, simulated: Top-K placed next to Word Count and Join.

"Elastic Allocator: an adaptive task scheduler for streaming query in the cloud" (SOSE, 2014), section V.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from elastream.core.frames import Floats, Integers
from elastream.core.hosts import Billing, HostType
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.plant import Policy
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.checks import mean_at_least, ordered
from elastream.evaluation.findings import Check
from elastream.evaluation.trials import simulated
from elastream.loads import trace
from elastream.policies.elastic_allocator.policy import (
    ElasticAllocator,
    allocate,
    capacities_of,
    deviation,
    free_slots,
    load_before,
    movable,
    needs_of,
)
from elastream.policies.placements import Even, Random
from elastream.simulator import Emissions, SimulatedPlant, make_plant
from elastream_papers.elastic_allocator.exact import least_deviation
from elastream_papers.harness.assumptions import assumed
from elastream_papers.tasks import Background, TaskNetwork, TaskSettings

RATES = (200, 400, 600, 800, 1000, 1200)  # tuples/s (paper, section V-B)
# Storm's even scheduler, random, and the paper's Algorithm 1 (section V-A); our search after it
POLICIES = ("even", "random", "elastic allocator", "with search")
OTHERS, JUDGED = POLICIES[:2], POLICIES[2]
HOSTS, CORES, SLOTS = 10, 4.0, 3  # hosts and cores (paper, section V-A), slots (Figure 3)
SWEEP = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # values of `busy` and `sent` at the highest rate
FULL = 0.99  # mean use of cores or link from which a host counts as full
# Per operator: name, tasks, relative work and bytes sent per tuple. Thirty tasks: ten workers of three slots. A slot is a
# process, so a task may use all cores of its host.
QUERIES: Mapping[str, tuple[tuple[str, int, float, float], ...]] = {
    "word count": (("split", 4, 1.0, 1.0), ("count", 6, 1.0, 0.5)),
    "join": (("parse", 4, 0.5, 1.0), ("match", 6, 3.0, 1.0)),
    "top-k": (("read", 3, 0.5, 1.0), ("rank", 5, 1.5, 0.5), ("merge", 2, 1.0, 0.1)),
}
RUNNING, ALLOCATED = ("word count", "join"), "top-k"
# length of a run, begin of measurement, seconds between rounds (paper: 5 to 10)
SECONDS, DECIDED, PERIOD = 60.0, 30.0, 10.0
# requests per minute to the World Cup 1998 site; the busiest day replays at one second a minute
WORLD_CUP = Path("../shared/data/rates/worldcup98_requests_per_minute.csv.gz")
DAY = 1440
# quantities of Figures 4 and 5 (no values in the text), and throughput
FIGURES = ("CPU use", "link use", "CPU deviation", "link deviation", "tuples/s")
WITHIN = 1.05  # bar: objective of greedy matching (GMA) over the exact placement's


@dataclass(frozen=True)
class AllocatorAssumptions:
    """Values missing in the paper."""

    busy: float = assumed(
        0.6,
        "of all cores",
        "what the three queries ask for at 1,200 tuples/s: the middle of the paper's moderate level (40 to 80 %), since "
        "even placement is said to leave some nodes heavy and others light",
    )
    sent: float = assumed(0.6, "of all links", "as `busy`, if no two tasks that communicate shared a host")
    keys: float = assumed(10_000.0, "keys", "they occur by Zipf's law, as pages of a site do, and go to tasks by chance")
    link: float = assumed(1.25e6, "bytes/s", "10 Mbit/s; with `sent` given, only a scale")
    background: float = assumed(
        0.1,
        "of a host's cores and link",
        "C0 and B_pre, what the system and other applications take; a host draws it evenly between none and twice this",
    )
    pending: float = assumed(1000.0, "tuples", "of a source under way at once")


@dataclass(frozen=True, slots=True)
class AllocatorCase:
    """A run. rate 0: the World Cup's busiest day. exact: also compute the exact placement. sweep: of `busy`."""

    policy: str
    rate: int
    seed: int = 1
    assumptions: AllocatorAssumptions = field(default_factory=AllocatorAssumptions)
    exact: bool = False
    sweep: bool = False

    @property
    def seconds(self) -> float:
        return SECONDS if self.rate else float(DAY)


@dataclass(frozen=True, slots=True)
class AllocatorRun:
    """Results of a case: means over time of `FIGURES`.

    gaps: deviation over the solver's best (`proven`: optimal) of Algorithm 1, and with search; empty if not computed.
    fullest: highest mean use of a host. crowded: most tasks on a host. series: (s, tuples/s, CPU use, link use, their
    deviations).
    """

    case: AllocatorCase
    figures: Mapping[str, float]
    moves: int
    refused: int
    gaps: tuple[float, ...]
    proven: bool
    fullest: float
    crowded: int
    series: tuple[tuple[float, ...], ...]


def operators_of(query: str) -> tuple[str, ...]:
    return tuple(f"{query} {name}" for name, *_ in QUERIES[query])


def queries(assumptions: AllocatorAssumptions) -> Graph:
    """Return the three queries as one dataflow; each has its own source of the same rate."""
    work = sum(cost for operators in QUERIES.values() for _, _, cost, _ in operators)
    # Every byte but the last operator's is sent once and received once; what comes from outside is received only.
    bytes_ = sum(2 * size for operators in QUERIES.values() for _, _, _, size in operators[:-1]) + len(QUERIES)
    second = assumptions.busy * HOSTS * CORES / work / RATES[-1]
    unit = assumptions.sent * HOSTS * assumptions.link / bytes_ / RATES[-1]
    operators: list[Operator] = []
    edges: list[Edge] = []
    for query, steps in QUERIES.items():
        before = f"{query} source"
        operators.append(Operator(before, Kind.SOURCE, record_bytes=unit))
        for number, (name, _, cost, size) in enumerate(steps):
            here = f"{query} {name}"
            keyed = number > 0
            operators.append(
                Operator(
                    here,
                    Kind.KEYED if keyed else Kind.TRANSFORM,
                    (Alternate(here, cost=cost * second),),
                    key=("key",) if keyed else (),
                    cores=CORES,
                    record_bytes=size * unit,
                )
            )
            edges.append(Edge(before, here, Delivery.KEYED if keyed else Delivery.DUPLICATE))
            before = here
        operators.append(Operator(f"{query} results", Kind.SINK, cores=0.0))
        edges.append(Edge(before, f"{query} results"))
    return Graph("queries", tuple(operators), tuple(edges))


@lru_cache
def world_cup_day(path: Path = WORLD_CUP) -> Integers:
    """Return tuples/s of the log's busiest day by minute, scaled to the highest rate; shape (1440,).

    Raises InputError if the file is missing.
    """
    counts = np.array([piece.total for piece in trace(path, gaps="empty").pieces])
    days = counts[: counts.size // DAY * DAY].reshape(-1, DAY)
    day = days[int(days.sum(axis=1).argmax())]
    return np.asarray(np.round(day / day.max() * RATES[-1]), dtype=np.int64)


def make(case: AllocatorCase) -> SimulatedPlant:
    """Return the plant of a case at time 0, placed by Storm's even scheduler."""
    assumptions = case.assumptions
    graph = queries(assumptions)
    counts = np.full(int(SECONDS), case.rate) if case.rate else world_cup_day()
    random = np.random.default_rng([case.seed, 3])
    ranks = np.arange(1, round(assumptions.keys) + 1)
    shares: dict[str, list[float]] = {}
    for query, steps in QUERIES.items():
        for number, (name, tasks, *_) in enumerate(steps):
            if number > 0:
                shares[f"{query} {name}"] = np.bincount(random.integers(0, tasks, ranks.size), 1 / ranks, tasks).tolist()
    plant = make_plant(
        lay_out(graph, chained=False),
        host_types=[HostType("slave", cores=CORES, slots=SLOTS, bandwidth=assumptions.link, billing=Billing(1.0))],
        hosts=HOSTS,
        loads={source.name: Emissions.every(1.0, counts, spread=True) for source in graph.sources},
        parallelism={f"{q} {name}": tasks for q, steps in QUERIES.items() for name, tasks, *_ in steps},
        seed=case.seed,
        seconds=case.seconds,
        network=TaskNetwork,
        settings=TaskSettings(
            monitor=5.0 if case.rate else PERIOD,
            start_cached=0.0,
            pending=assumptions.pending,
            shares=shares,
            background=backgrounds(case),
        ),
    )
    for query in QUERIES:
        for action in Even(operators_of(query)).plan(plant.observe()).actions:
            plant.apply(action)
    return plant


def backgrounds(case: AllocatorCase) -> Mapping[str, Background]:
    """Return the load of others on each host, drawn by the case's seed: equal under every policy."""
    assumptions = case.assumptions
    parts = np.random.default_rng([case.seed, 4]).uniform(0, 2 * assumptions.background, (HOSTS, 2))
    return {
        f"h{k + 1}": Background(CORES * cores, assumptions.link * link) for k, (cores, link) in enumerate(parts.tolist())
    }


def policy_of(case: AllocatorCase) -> Policy:
    """Return the policy that places Top-K."""
    mine = operators_of(ALLOCATED)
    match case.policy:
        case "even":
            return Even(mine)
        case "random":
            return Random(case.seed, mine, slots=True)
        case _:
            return ElasticAllocator(mine, period=PERIOD, slots=True, search=case.policy != JUDGED)


def run_case(case: AllocatorCase) -> AllocatorRun:
    plant = make(case)
    placed = plant.migrations
    monitor = plant.settings.monitor
    rows: list[tuple[float, ...]] = []
    passed: list[float] = []
    exact: list[tuple[tuple[float, ...], bool]] = []
    uses: list[Floats] = []
    most = [0]

    def look(seen: Observation) -> None:
        use = used(seen)
        even = np.array([deviation(use[:, kind], np.ones(len(use))) for kind in (0, 1)])
        offered = float(np.mean([seen.operators.value(s.name, Metric.ARRIVAL_RATE) for s in seen.context.graph.sources]))
        rows.append((seen.time, offered, *use.mean(axis=0).tolist(), *even.tolist()))
        uses.append(use)
        if rows[-1][0] > DECIDED:
            most[0] = max(most[0], int(np.bincount(seen.tasks.host).max()))
        passed.append(seen.application.value("queries", Metric.THROUGHPUT) / len(QUERIES))
        if case.exact and not exact and seen.time >= PERIOD:
            exact.append(against_exact(seen))

    if monitor < PERIOD:  # the policy decides from PERIOD on
        plant.advance(monitor)
        look(plant.observe())
    run = simulated(plant, policy_of(case), period=monitor, until=case.seconds, look=look, roll_back=False)
    table = np.array(rows)
    measured = table[:, 0] > DECIDED
    means = [*table[measured, 2:].mean(axis=0).tolist(), float(np.mean(np.array(passed)[measured]))]
    gaps, proven = exact[0] if exact else ((), False)
    moves = run.result.migrations - placed
    fullest = float(np.mean(np.array(uses)[measured], axis=0).max())
    figures = dict(zip(FIGURES, means, strict=True))
    return AllocatorRun(case, figures, moves, run.refused, gaps, proven, fullest, most[0], tuple(rows))


def used(seen: Observation) -> Floats:
    """Return the use of cores and link by host, at most 1; shape (hosts, 2)."""
    links = [seen.leases[host].type.bandwidth or math.inf for host in seen.hosts.ids]
    link = np.minimum(1.0, seen.hosts.column(Metric.BANDWIDTH) / np.array(links))
    return np.stack([seen.hosts.column(Metric.CPU), link], axis=1)


def against_exact(seen: Observation, seconds: float = 10.0) -> tuple[tuple[float, ...], bool]:
    """Return (deviations of Algorithm 1 and with search over the best's, True if that is proven optimal)."""
    needs, mine = needs_of(seen), movable(seen, operators_of(ALLOCATED))
    rows = np.arange(len(seen.hosts))
    sizes, base, slots = capacities_of(seen, rows), load_before(seen, rows, mine, needs), free_slots(seen, rows, mine)

    def of(place: Integers) -> float:
        loads = base.copy()
        np.add.at(loads, place, needs[mine])
        return deviation(loads, sizes)

    best = least_deviation(needs[mine], base, sizes, seconds=seconds, slots=slots)
    placed = (allocate(needs[mine], base, sizes, slots=slots, search=search).place for search in (False, True))
    return tuple(of(place) / of(best.place) for place in placed), best.optimal


def by_policy(runs: Sequence[AllocatorRun], rate: int) -> dict[str, dict[str, float]]:
    """Return means over seeds at one rate, by policy and figure."""
    found = {}
    for policy in POLICIES:
        mine = [run for run in runs if run.case.rate == rate and run.case.policy == policy and not run.case.sweep]
        if mine:
            found[policy] = {name: float(np.mean([run.figures[name] for run in mine])) for name in FIGURES}
    return found


SAME = 0.002  # tolerance of utilisation between equal runs, by the simulator's time steps


def paired(runs: Sequence[AllocatorRun], figure: str) -> dict[tuple[int, str], list[float]]:
    """Return a figure by rate and policy, in the order of seeds."""
    found: dict[tuple[int, str], list[float]] = {}
    for run in sorted(runs, key=lambda run: run.case.seed):
        found.setdefault((run.case.rate, run.case.policy), []).append(run.figures[figure])
    return found


def bars(runs: Sequence[AllocatorRun]) -> tuple[Check, ...]:
    """Return bars of Algorithm 1 against even and random placement by rate, of our search, and of the sweep of `busy`."""
    main = [run for run in runs if run.case.rate and not run.case.sweep]
    rates = sorted({run.case.rate for run in main})
    checks = []
    for name in ("CPU deviation", "link deviation"):
        values = paired(main, name)
        ratios = []
        for rate in rates:
            best = min((values[rate, other] for other in OTHERS), key=lambda each: float(np.mean(each)))
            ratios.append([ours / theirs for ours, theirs in zip(values[rate, JUDGED], best, strict=True)])
        what = f"{name} over the better of even and random, at every rate"
        text = " / ".join(f"{float(np.mean(each)):.3f}" for each in ratios)
        checks.append(ordered(what, text, "< 1", [[1 - each for each in ratio] for ratio in ratios], FIGURE_5))
    for name in ("CPU use", "link use"):
        values = paired(main, name)
        steps = []
        for rate in rates:
            best = max((values[rate, other] for other in OTHERS), key=lambda each: float(np.mean(each)))
            steps.append([ours - theirs for ours, theirs in zip(values[rate, JUDGED], best, strict=True)])
        least = min(steps, key=lambda each: float(np.mean(each)))
        what, text = f"{name} less the better of even and random", f"at least {float(np.mean(least)):.4f}"
        for bound, claim in ((-SAME, "at no rate lower"), (SAME, "at every rate higher")):
            gaps = [[each - bound for each in step] for step in steps]
            sign = ">=" if bound < 0 else ">"
            check = ordered(f"{what}: {claim}", text, f"{sign} {bound:g}", gaps, FIGURE_4)
            checks.append(replace(check, refuted=CONSERVED) if bound > 0 and not check.holds else check)
    if exact := [run for run in main if run.gaps]:
        # Compared with the solver's best within its time. If that is not proven optimal, the true gap may be larger.
        widest, proven = max(run.gaps[1] for run in exact), all(run.proven for run in exact)
        what = f"search: deviation over the exact placement's{'' if proven else ', best found'}"
        within = widest <= WITHIN and (proven or None)
        checks.append(Check(what, round(widest, 4), f"<= {WITHIN:g}", within, "our bar"))
    crowded = max(run.crowded for run in runs)
    checks.append(Check("tasks on a host, at most", crowded, f"<= {SLOTS}", crowded <= SLOTS, "Figure 3: slots"))
    return (*checks, *conserved([run for run in runs if run.case.sweep]))


def conserved(runs: Sequence[AllocatorRun]) -> tuple[Check, ...]:
    """Return the bars of the sweep of `busy`: equal CPU use until a host is full, higher beyond.

    Before that all tuples need equal cores anywhere: "the highest use at every rate" (section V-B) cannot hold.
    """
    pairs: dict[tuple[float, int], dict[str, AllocatorRun]] = {}
    for run in runs:
        pairs.setdefault((run.case.assumptions.busy, run.case.seed), {})[run.case.policy] = run
    both = [(pair[OTHERS[0]], pair[JUDGED]) for pair in pairs.values() if len(pair) == 2]
    if not both:
        return ()
    gains = [(even, ours.figures["CPU use"] - even.figures["CPU use"], ours) for even, ours in both]
    free = [abs(gain) for even, gain, ours in gains if max(even.fullest, ours.fullest) < FULL]
    held_up = [gain for even, gain, _ in gains if even.fullest >= FULL]
    found = []
    if free:
        what = f"sweep of busy, {len(free)} pairs without a full host: CPU use differs from even placement's"
        found.append(Check.at_most(what, max(free), SAME, "conservation of work"))
    if held_up:
        what = f"sweep of busy, {len(held_up)} pairs where even placement fills a host: CPU use above even placement's"
        found.append(mean_at_least(what, held_up, SAME, "our bar; the claim of Figure 4 that can be true"))
    return tuple(found)


FIGURE_4, FIGURE_5 = "paper, Figure 4", "paper, Figure 5"
CONSERVED = "while no host and no link is full, the same tuples need the same cores wherever tasks lie"
