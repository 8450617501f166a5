"""OTD's evaluation, simulated: Word Count, communication- and computation-intensive.

"Online nonstop task management for Storm-based distributed stream processing engines" (JCST, 2024), section 5.3. Workers
are hosts of one core, nodes are regions.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np

from elastream.core.frames import Floats
from elastream.core.hosts import Billing, HostType
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.plant import Policy
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.trials import simulated
from elastream.policies.otd import Otd
from elastream.policies.placements import Untouched
from elastream.simulator import Emissions, SimulatedPlant, make_plant
from elastream_papers.elastic_allocator.exact import pack
from elastream_papers.harness.assumptions import assumed
from elastream_papers.tasks import TaskNetwork, TaskSettings

APPLICATIONS = ("communication", "computation")  # limiting resource (paper, section 5.3)
# Storm's even start; OTD as published (`relief=0`); our option, by which a move must relieve a worker
POLICIES = ("even", "otd", "otd with relief")
SECONDS, PERIOD = 600.0, 5.0  # length of a run, seconds between rounds (paper, 5.2 and 5.3)
SETTLED = 50.0  # seconds until OTD settles (5.3.1: "after less than 50 seconds")
LATE = 200.0  # seconds before throughput and delay are compared (5.3.2)
HOPS = 4  # network hops of an answer at least: client, DRPC server, worker, and back (5.1)
# Numbers of runs. Half of twelve tasks calculate, redrawn five times a run: 100 draws, stratified (`heavy_sets`)
SEEDS: Mapping[str, int] = {"communication": 2, "computation": 20}
STRATA = 5  # runs stratified together; intervals are over these independent blocks
VARIED_SEEDS: Mapping[str, int] = {"communication": 2, "computation": 10}  # numbers of seeds of variations
FEWER_SEEDS: Mapping[str, int] = {"communication": 2, "computation": 3}  # of quick runs and of other sizes

# Sections 5.3.1 and 5.3.2, Figures 12 and 13: two nodes of four workers. CPU use rises to 77 % in 50 s (the abstract's 51
# %) and stays at 75 % while the calculation moves. Figures 14 and 15 have no numbers in the text.
PAPER: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "communication": {
        "even": {"traffic between nodes, at the end": 0.50},
        "otd": {"traffic between nodes, at the end": 0.06},
    },
    "computation": {
        "even": {
            "CPU use of workers, settled": 0.51,
            "CPU use of workers, mean": 0.51,
            "traffic between nodes, at the end": 0.50,
        },
        "otd": {
            "CPU use of workers, settled": 0.77,
            "CPU use of workers, mean": 0.75,
            "traffic between nodes, at the end": 0.20,
        },
    },
}


@dataclass(frozen=True)
class OtdAssumptions:
    """Values missing in the paper."""

    words: float = assumed(12.0, "words a sentence", "about what novels have")
    sentence: float = assumed(70.0, "bytes", "so many words of about five letters, and blanks")
    word: float = assumed(16.0, "bytes", "a word and what a tuple of it needs")
    light: float = assumed(0.02, "times the heavy work", "Bolt 1 where no calculation is added: splitting alone")
    heavy_share: float = assumed(
        0.5,
        "of Bolt 1's tasks",
        "the calculation is added to a random part of the key domain; half is as much random as a part can be",
        most=1.0,
    )
    interval: float = assumed(120.0, "s", "how long a part of the key domain has the calculation before it changes")
    quiet: float = assumed(
        0.15, "of all cores", "communication-intensive: 'CPU usage is stable at a low level for all workers'"
    )
    vocabulary: float = assumed(
        10_000.0, "words", "of a novel; they occur by Zipf's law, and each goes to one of Bolt 2's tasks by chance"
    )
    offered: float = assumed(
        1.25,
        "times a core's worth a task",
        "computation-intensive: as fast as answers come, more than a worker can do for one heavy task",
    )
    stop: float = assumed(
        0.05,
        "s",
        "a move stops its task: N-Storm+ keeps the old one until the new one works (section 3.3); the rest is assumed",
    )
    hop: float = assumed(0.0005, "s", "one way between two machines; within a machine it is nothing")
    link: float = assumed(
        125e6, "bytes/s", "of a worker node: 1 Gbit/s; the paper gives the rate of its cloud only, 8 Gbit/s"
    )
    pending: float = assumed(
        500.0, "sentences", "computation-intensive: under way at once: the clients of DRPC wait for their answers"
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Worker nodes, workers on each, and tasks of the two bolts."""

    nodes: int
    workers: int
    first: int
    second: int

    @property
    def name(self) -> str:
        return f"{self.nodes} nodes x {self.workers}"

    @property
    def hosts(self) -> int:
        return self.nodes * self.workers


MAIN = Cluster(2, 4, 12, 24)  # sections 5.1, 5.3.1 and 5.3.2
SIZES = tuple(Cluster(nodes, 2, 3 * nodes, 6 * nodes) for nodes in (2, 4, 8, 16))  # section 5.3.3


@dataclass(frozen=True, slots=True)
class OtdCase:
    """One run."""

    application: str
    policy: str
    cluster: Cluster = MAIN
    seed: int = 1
    assumptions: OtdAssumptions = field(default_factory=OtdAssumptions)


@dataclass(frozen=True, slots=True)
class OtdRun:
    """Results of a case.

    cpu: mean use of workers after SETTLED seconds; settled: also after each change. remote, remote_end: cross-node part
    of the traffic, mean and at the end. rate: sentences/s. late, answer: sentences/s and seconds an answer after LATE
    seconds. best: CPU use under the exact packing, or NaN. warnings: remarks on short resources. series: (s, CPU,
    remote, sentences/s, seconds an answer, moves).
    """

    case: OtdCase
    cpu: float
    settled: float
    remote: float
    remote_end: float
    rate: float
    late: float
    answer: float
    best: float
    moves: int
    warnings: int
    refused: int
    series: tuple[tuple[float, ...], ...]

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "CPU use of workers, settled": self.settled,
            "CPU use of workers, mean": self.cpu,
            "traffic between nodes, mean": self.remote,
            "traffic between nodes, at the end": self.remote_end,
            "sentences/s": self.rate,
            "sentences/s after 200 s": self.late,
            "answer after 200 s, ms": 1000 * self.answer,
            "moves": self.moves,
            "warnings of shortage": self.warnings,
        }


MOST_SETS = 100_000  # most sets to enumerate for stratified draws
# Core-seconds per sentence with the calculation and without, and per word. Only ratios matter: the rate follows from the
# intended utilisation.
HEAVY, SPLIT, COUNT = 1e-3, 2e-5, 1e-6


def shared_workers(heavy: Sequence[int], cluster: Cluster) -> int:
    """Return the workers with two or more of the tasks `heavy` of Bolt 1, which run at half speed."""
    return sum(count > 1 for count in Counter(task % cluster.hosts for task in heavy).values())


@lru_cache
def heavy_sets(cluster: Cluster, size: int, block: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Draw `count` sets of `size` heavy tasks of Bolt 1 for a block.

    Sets are ranked by `shared_workers` and taken at even distances, so that block means vary less; at random if they are
    too many to list.
    """
    random, tasks = np.random.default_rng([block, cluster.first, size]), cluster.first
    if math.comb(tasks, size) > MOST_SETS:
        return tuple(tuple(sorted(random.permutation(tasks)[:size].tolist())) for _ in range(count))
    sets = [tuple(each) for each in combinations(range(tasks), size)]
    order = random.permutation(len(sets)).tolist()
    ranked = sorted(order, key=lambda number: shared_workers(sets[number], cluster))
    places = (np.arange(count) + random.uniform()) * len(sets) / count
    chosen = [sets[ranked[int(place) % len(sets)]] for place in places]
    return tuple(chosen[number] for number in random.permutation(count).tolist())


def efforts(case: OtdCase) -> Floats:
    """Return the cost of a sentence by task of Bolt 1, relative to the heavy work; shape (intervals, tasks)."""
    assumptions, tasks = case.assumptions, case.cluster.first
    intervals = math.ceil(SECONDS / assumptions.interval)
    size = max(1, round(assumptions.heavy_share * tasks))
    block, place = divmod(case.seed - 1, STRATA)
    drawn = heavy_sets(case.cluster, size, block, STRATA * intervals)[place * intervals : (place + 1) * intervals]
    table = np.full((intervals, tasks), assumptions.light)
    for row, heavy in zip(table, drawn, strict=True):
        row[list(heavy)] = 1.0
    return table


def word_shares(case: OtdCase) -> Floats:
    """Return the fraction of words that each task of Bolt 2 counts; shape (tasks,)."""
    random = np.random.default_rng([case.seed, case.cluster.second, 7])
    ranks = np.arange(1, round(case.assumptions.vocabulary) + 1)
    found = np.bincount(random.integers(0, case.cluster.second, ranks.size), 1 / ranks, case.cluster.second)
    return np.asarray(found / found.sum())


def best_use(case: OtdCase) -> float:
    """Return the mean CPU use under the exact packing (the solver's proven bound)."""
    counting = COUNT * case.assumptions.words * word_shares(case)
    found = []
    for row in efforts(case):
        a_sentence = np.concatenate([HEAVY * row / row.size, counting])
        packed = pack(a_sentence, case.cluster.hosts, seconds=5.0)
        found.append(float(a_sentence.sum()) / (case.cluster.hosts * packed.bound))
    return float(np.mean(found))


def word_count(case: OtdCase) -> Graph:
    """Return the dataflow: sentences, Bolt 1 (splits and calculates), Bolt 2 (counts)."""
    assumptions = case.assumptions
    split = HEAVY if case.application == "computation" else SPLIT
    return Graph(
        "word_count",
        (
            Operator("sentences", Kind.SOURCE, record_bytes=assumptions.sentence),
            Operator(
                "split",
                alternates=(Alternate("split", cost=split, selectivity=assumptions.words),),
                record_bytes=assumptions.word,
            ),
            Operator("count", Kind.KEYED, (Alternate("count", cost=COUNT),), key=("word",), record_bytes=assumptions.word),
            Operator("results", Kind.SINK, cores=0.0),
        ),
        (Edge("sentences", "split"), Edge("split", "count", Delivery.KEYED), Edge("count", "results")),
    )


def quiet_rate(case: OtdCase) -> float:
    """Return sentences/s at which the communication-intensive application uses `quiet` of all cores."""
    return case.assumptions.quiet * case.cluster.hosts / (SPLIT + case.assumptions.words * COUNT)


def clients(case: OtdCase) -> float:
    """Return the sentences in flight, one per waiting client.

    Communication-intensive: for `quiet_rate` while half of the words cross nodes and an answer takes HOPS + 1 hops.
    """
    if case.application == "computation":
        return case.assumptions.pending
    return quiet_rate(case) * (HOPS + 1) * case.assumptions.hop


def make(case: OtdCase) -> SimulatedPlant:
    """Return the plant of a case at time 0: tasks and workers in round-robin order."""
    assumptions, cluster = case.assumptions, case.cluster
    kinds = [HostType(f"n{k}", cores=1.0, billing=Billing(1.0), region=f"n{k}") for k in range(cluster.nodes)]
    heavy = case.application == "computation"
    rate = assumptions.offered * cluster.first / HEAVY if heavy else 2 * quiet_rate(case)
    return make_plant(
        lay_out(word_count(case), chained=False),
        host_types=kinds,
        hosts=[kind.name for kind in kinds] * cluster.workers,
        loads={"sentences": Emissions.every(1.0, np.full(int(SECONDS), round(rate)), spread=True)},
        parallelism={"split": cluster.first, "count": cluster.second},
        seed=case.seed,
        seconds=SECONDS,
        network=TaskNetwork,
        settings=TaskSettings(
            monitor=PERIOD,
            start_cached=assumptions.stop,
            latency=assumptions.hop,
            machine_link=assumptions.link,
            pending=clients(case),
            turnaround=0.0 if heavy else (HOPS - 1) * assumptions.hop,
            shares={"count": word_shares(case).tolist()},
            efforts={"split": efforts(case)} if heavy else {},
            share_interval=assumptions.interval,
        ),
    )


def policy_of(case: OtdCase) -> Policy:
    """Return the policy of a case; the even deployment's never acts."""
    if case.policy == "even":
        return Untouched()
    return Otd(period=PERIOD, node="region") if "relief" in case.policy else Otd(period=PERIOD, node="region", relief=0.0)


def between_nodes(seen: Observation) -> float:
    """Return the fraction of the traffic between tasks that crosses nodes."""
    regions = sorted({lease.type.region for lease in seen.leases.values()})
    node = np.array([regions.index(seen.leases[host].type.region) for host in seen.hosts.ids])
    within, between = seen.exchange.split(node[seen.tasks.host])
    return between / (within + between)


def run_case(case: OtdCase) -> OtdRun:
    plant = make(case)
    rows: list[tuple[float, ...]] = []

    def look(seen: Observation) -> None:
        rate = seen.application.value("word_count", Metric.THROUGHPUT) / case.assumptions.words
        cpu = float(np.mean(seen.hosts.column(Metric.CPU)))
        # Little's law: sentences under way over sentences/s.
        answer = clients(case) / rate if rate > 0 else math.nan
        rows.append((seen.time, cpu, between_nodes(seen), rate, answer, float(plant.migrations)))

    run = simulated(plant, policy_of(case), period=PERIOD, until=SECONDS, look=look, roll_back=False)
    table = np.array(rows)
    later = table[:, 0] > SETTLED
    late = float(table[table[:, 0] > LATE, 3].mean())
    # A row describes the period that ends at its time.
    settled = (table[:, 0] - PERIOD / 2) % case.assumptions.interval > SETTLED
    return OtdRun(
        case,
        float(table[later, 1].mean()),
        float(table[settled, 1].mean()),
        float(table[:, 2].mean()),
        float(table[-1, 2]),
        float(table[later, 3].mean()),
        late,
        clients(case) / late if late > 0 else math.nan,
        best_use(case) if case.application == "computation" and case.policy == "even" else math.nan,
        run.result.migrations,
        sum("resources are short" in decision.note for decision in run.decisions),
        run.refused,
        tuple(rows),
    )
