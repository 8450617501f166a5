"""OTD's evaluation, simulated: Word Count, communication- and computation-intensive, from Storm's even start.

From "Online nonstop task management for Storm-based distributed stream processing engines" (JCST, 2024), section 5.3.
Workers are hosts of one core, worker nodes are regions. `OtdAssumptions` holds values that the paper does not give.
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
from elastream.evaluation.simulated import simulated
from elastream.policies.elastic_allocator.exact import pack
from elastream.policies.otd import Otd
from elastream.policies.placements import Untouched
from elastream.simulator import Emissions, SimulatedPlant, make_plant
from elastream_papers.harness.assumptions import assumed
from elastream_papers.tasks import TaskNetwork, TaskSettings

APPLICATIONS = ("communication", "computation")
"""What limits the application (paper, section 5.3)."""
POLICIES = ("even", "otd as published", "otd")
"""Storm's even deployment, unchanged; OTD as published; and OTD with the extension that a move must relieve a worker."""
SECONDS, PERIOD = 600.0, 5.0
"""Length of a run, and seconds between rounds (paper, sections 5.2 and 5.3)."""
SETTLED = 50.0
"""Seconds after which the paper's OTD has settled (section 5.3.1: "after less than 50 seconds")."""
LATE = 200.0
"""Seconds after which throughput and delay are compared, communication-intensive (paper, section 5.3.2)."""
HOPS = 4
"""Ways over the network that an answer takes in any case: client, DRPC server, worker; and back (paper, section 5.1)."""
SEEDS: Mapping[str, int] = {"communication": 5, "computation": 40}
"""Numbers of runs. Half of twelve tasks calculate, redrawn five times a run: 200 draws, stratified, see `heavy_sets`."""
FRESH_SEEDS = range(101, 141)
"""Computation-intensive runs with other draws, on which what was found with `SEEDS` is confirmed."""
STRATA = 5
"""Runs whose 25 draws are stratified together. Blocks are independent of each other, and intervals are over them."""
FEWER_SEEDS: Mapping[str, int] = {"communication": 1, "computation": 4}
"""Numbers of seeds of quick runs: they suffice to show a change."""

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
"""Sections 5.3.1 and 5.3.2, Figures 12 and 13: two worker nodes of four workers each. Figures 14 and 15 (2 to 16 worker
nodes of two workers) give no numbers in the text. CPU use rises to 77 % in the first 50 s, which is the 51 % more of its
abstract, and is kept at 75 % while the calculation moves from task to task."""


@dataclass(frozen=True)
class OtdAssumptions:
    """Values that the paper does not give, which can be halved and doubled."""

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
        1.0, "s", "a move stops its task: N-Storm stops the system for less than a second (section 5.2.1)"
    )
    earned: float = assumed(
        60.0,
        "s",
        "ours, not the paper's: in which a move has to earn what it costs; half of the time a load stays on average",
    )
    hop: float = assumed(0.0005, "s", "one way between two machines; within a machine it is nothing")
    link: float = assumed(
        125e6, "bytes/s", "of a worker node: 1 Gbit/s; the paper gives the rate of its cloud only, 8 Gbit/s"
    )
    pending: float = assumed(
        500.0, "sentences", "computation-intensive: under way at once: the clients of DRPC wait for their answers"
    )

    @property
    def relief(self) -> float:
        """What a move must bring: what it costs over the time in which it has to earn that."""
        return self.stop / self.earned


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


MAIN = Cluster(2, 4, 12, 24)
"""Sections 5.1, 5.3.1 and 5.3.2."""
SIZES = tuple(Cluster(nodes, 2, 3 * nodes, 6 * nodes) for nodes in (2, 4, 8, 16))
"""Section 5.3.3."""


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
    """Results of a case. cpu: mean use of workers after SETTLED seconds. settled: the same without SETTLED seconds after
    every change. remote, remote_end: part of the traffic between tasks that crosses nodes, mean and at the end. rate:
    sentences/s over the time of `cpu`. late, answer: sentences/s and seconds an answer after LATE seconds. best: mean
    CPU use under the exact packing, or NaN. warnings: rounds that remark short resources. series: rows of (s, CPU,
    remote, sentences/s, seconds an answer, moves so far).
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


MOST_SETS = 100_000
"""Sets of calculating tasks that are listed, to be drawn from by strata."""
HEAVY, SPLIT, COUNT = 1e-3, 2e-5, 1e-6
"""Core-seconds per sentence with the calculation and without, and per word. Only their ratios matter: the offered rate is
chosen for the intended utilisation of the cluster."""


def shared_workers(heavy: Sequence[int], cluster: Cluster) -> int:
    """Workers on which the even start puts two or more of the tasks `heavy` of Bolt 1: they run at half speed."""
    return sum(count > 1 for count in Counter(task % cluster.hosts for task in heavy).values())


@lru_cache
def heavy_sets(cluster: Cluster, size: int, block: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Draw `count` sets of `size` tasks of Bolt 1 for the runs of a block, stratified by `shared_workers`.

    The even start's CPU use depends on the number of shared workers. Each stratum gets its part of the draws (systematic
    sampling from a random start), so that a block's mean varies less. Sets too many to list are drawn freely. Draws of two
    blocks are independent.
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
    """Cost of a sentence at each task of Bolt 1, as a multiple of the heavy work; shape (intervals, tasks)."""
    given, tasks = case.assumptions, case.cluster.first
    intervals = math.ceil(SECONDS / given.interval)
    size = max(1, round(given.heavy_share * tasks))
    block, place = divmod(case.seed - 1, STRATA)
    drawn = heavy_sets(case.cluster, size, block, STRATA * intervals)[place * intervals : (place + 1) * intervals]
    table = np.full((intervals, tasks), given.light)
    for row, heavy in zip(table, drawn, strict=True):
        row[list(heavy)] = 1.0
    return table


def word_shares(case: OtdCase) -> Floats:
    """Fraction of all words that each task of Bolt 2 counts; shape (tasks,)."""
    random = np.random.default_rng([case.seed, case.cluster.second, 7])
    ranks = np.arange(1, round(case.assumptions.vocabulary) + 1)
    found = np.bincount(random.integers(0, case.cluster.second, ranks.size), 1 / ranks, case.cluster.second)
    return np.asarray(found / found.sum())


def best_use(case: OtdCase) -> float:
    """Mean CPU use over the intervals under the exact packing of all tasks, limited by the busiest worker.

    Uses the bound proven by the solver, so that no placement exceeds it.
    """
    counting = COUNT * case.assumptions.words * word_shares(case)
    found = []
    for row in efforts(case):
        a_sentence = np.concatenate([HEAVY * row / row.size, counting])
        packed = pack(a_sentence, case.cluster.hosts, seconds=5.0)
        found.append(float(a_sentence.sum()) / (case.cluster.hosts * packed.bound))
    return float(np.mean(found))


def word_count(case: OtdCase) -> Graph:
    """Sentences, Bolt 1 that splits (and calculates), Bolt 2 that counts."""
    given = case.assumptions
    split = HEAVY if case.application == "computation" else SPLIT
    return Graph(
        "word_count",
        (
            Operator("sentences", Kind.SOURCE, record_bytes=given.sentence),
            Operator(
                "split", alternates=(Alternate("split", cost=split, selectivity=given.words),), record_bytes=given.word
            ),
            Operator("count", Kind.KEYED, (Alternate("count", cost=COUNT),), key=("word",), record_bytes=given.word),
            Operator("results", Kind.SINK, cores=0.0),
        ),
        (Edge("sentences", "split"), Edge("split", "count", Delivery.KEYED), Edge("count", "results")),
    )


def quiet_rate(case: OtdCase) -> float:
    """Sentences/s at which the communication-intensive application uses `quiet` of all cores."""
    return case.assumptions.quiet * case.cluster.hosts / (SPLIT + case.assumptions.words * COUNT)


def clients(case: OtdCase) -> float:
    """Return the sentences in flight, one per client that waits for its answer.

    Communication-intensive: as many as bring `quiet_rate` while half of the words cross nodes and an answer takes HOPS + 1
    ways.
    """
    if case.application == "computation":
        return case.assumptions.pending
    return quiet_rate(case) * (HOPS + 1) * case.assumptions.hop


def make(case: OtdCase) -> SimulatedPlant:
    """The plant of a case, at time 0: tasks in round-robin order over the workers, workers over the nodes."""
    given, cluster = case.assumptions, case.cluster
    kinds = [HostType(f"n{k}", cores=1.0, billing=Billing(1.0), region=f"n{k}") for k in range(cluster.nodes)]
    heavy = case.application == "computation"
    rate = given.offered * cluster.first / HEAVY if heavy else 2 * quiet_rate(case)
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
            start_cached=given.stop,
            latency=given.hop,
            machine_link=given.link,
            pending=clients(case),
            turnaround=0.0 if heavy else (HOPS - 1) * given.hop,
            shares={"count": word_shares(case).tolist()},
            efforts={"split": efforts(case)} if heavy else {},
            share_interval=given.interval,
        ),
    )


def policy_of(case: OtdCase) -> Policy:
    """The policy of a case; for the even deployment one that never acts."""
    if case.policy == "even":
        return Untouched()
    return Otd(period=PERIOD, node="region", relief=0.0 if case.policy == "otd as published" else case.assumptions.relief)


def between_nodes(seen: Observation) -> float:
    """Fraction of the traffic between tasks that crosses nodes."""
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

    run = simulated(plant, policy_of(case), period=PERIOD, until=SECONDS, look=look)
    table = np.array(rows)
    later = table[:, 0] > SETTLED
    late = float(table[table[:, 0] > LATE, 3].mean())
    # A row describes the period that ends with it.
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
