"""E2DF's evaluation, simulated: Word Count with no, one and two levels of elasticity.

"A multi-level elasticity framework for distributed data stream processing" (Nardelli et al., 2018), section 5, Figure 2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from elastream.core.hosts import Billing, HostState, HostType, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.plant import Policy
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.evaluation.checks import mean_within
from elastream.evaluation.findings import Check
from elastream.evaluation.trials import simulated
from elastream.loads import ramp
from elastream.policies.e2df.policy import E2df
from elastream.policies.static import Static
from elastream.simulator import Settings, SimulatedPlant, make_plant
from elastream_papers.harness.assumptions import assumed

# no adaptation; operators only; operators and hosts (paper, section 5)
SCENARIOS = ("static", "application", "both levels")
LOWEST, HIGHEST = 5.0, 550.0  # tuples/s at the ends and in the middle (paper, section 5)
# replicas of the static provision, 15 in total (paper; the source's one is the remainder)
STATIC: Mapping[str, int] = {"source": 1, "split": 2, "count": 6, "consume": 6}
STATIC_HOSTS, FIRST_HOSTS = 16, 5  # hosts of the static provision (the maximum); R_init (paper)
CORES = 0.5  # cores of a host; one replica uses all of it (paper: C_n = 1)
SCALE_OUT, SCALE_IN = 0.7, 0.75  # S_s-out and c (paper)
APPLICATION_PERIOD, INFRASTRUCTURE_PERIOD = 30.0, 60.0  # seconds between rounds (paper)

# Section 5: 55 % fewer replicas, 24 % fewer hosts; the latency of both levels is "almost identical" to the application
# level's
PAPER: Mapping[str, Mapping[str, float]] = {
    "static": {
        "mean latency (ms)": 11.4,
        "replicas (mean)": 15,
        "replicas without the source's (mean)": 2 + 6 + 6,
        "hosts that are up (mean)": 16,
    },
    "application": {"mean latency (ms)": 19.3, "replicas (mean)": 0.45 * 15, "hosts that are up (mean)": 16},
    "both levels": {"replicas (mean)": 0.45 * 15, "hosts that are up (mean)": 0.76 * 16},
}

SEEDS = tuple(range(1, 7))  # of service times; they move savings by a hundredth of a point
FEWER_REPLICAS, FEWER_HOSTS, SLOWER = 0.55, 0.24, 1.7  # the paper's results (19.3 / 11.4 = 1.7)
POINTS, RATIO = 0.02, 0.2  # reach of a bar around a saving and around the ratio of latencies


@dataclass(frozen=True)
class E2dfAssumptions:
    """Values missing in the paper."""

    work: float = assumed(
        1.0,
        "times the least",
        "the paper gives no service time, only that 2, 6 and 6 replicas are provided for the peak; 1 is the least work for "
        "which its own rule would not take one of them away at the peak: a utilisation of (n - 1) / n c S_s-out",
    )
    source_work: float = assumed(
        0.35, "utilisation at the peak", "the source has one replica in every scenario, so less than S_s-out; half of it"
    )
    words: float = assumed(
        6.4, "words a sentence", "the mean of the five sentences that Storm's word count example draws from"
    )
    rise: float = assumed(900.0, "s", "how long the load rises, and then falls, Figure 2 does not say in its text")
    host_start: float = assumed(5.0, "s", "the paper: containers are quickly spawned")
    host_stop: float = assumed(10.0, "s", "Docker's time between asking a container to stop and stopping it")
    variation: float = assumed(0.2, "coefficient of variation", "of service times, lognormal: the simulator's default")
    network_latency: float = assumed(0.0005, "s one way", "the simulator's default between hosts of one data centre")

    @property
    def seconds(self) -> float:
        return 2 * self.rise


def utilisation_at_peak(operator: str, assumptions: E2dfAssumptions) -> float:
    """Return the utilisation of the static replicas of `operator` at 550 tuples/s."""
    if operator == "source":
        return assumptions.source_work
    replicas = STATIC[operator]
    return assumptions.work * (replicas - 1) / replicas * SCALE_IN * SCALE_OUT


def heaviest(assumptions: E2dfAssumptions) -> E2dfAssumptions:
    """Return the largest work that keeps every static replica below S_s-out."""
    most = min(
        SCALE_OUT / utilisation_at_peak(operator, replace(assumptions, work=1.0)) for operator in ("count", "consume")
    )
    return replace(assumptions, work=most)


def word_count(assumptions: E2dfAssumptions) -> Graph:
    """Return the paper's source and three operators, each with the work that the static provision implies."""

    def operator(name: str, rate: float, selectivity: float = 1.0) -> Operator:
        # Core-seconds per tuple: what keeps the static replicas, with half a core each, that busy at the peak.
        cost = utilisation_at_peak(name, assumptions) * STATIC[name] * CORES / rate
        return Operator(name, Kind.TRANSFORM, (Alternate(name, cost=cost, selectivity=selectivity),), cores=CORES)

    words = HIGHEST * assumptions.words
    return Graph(
        "word_count",
        (
            Operator("sentences", Kind.SOURCE),
            operator("source", HIGHEST),
            operator("split", HIGHEST, assumptions.words),
            operator("count", words),
            operator("consume", words),
            Operator("queue", Kind.SINK, cores=0.0),
        ),
        (
            Edge("sentences", "source"),
            Edge("source", "split"),
            Edge("split", "count", Delivery.KEYED),
            Edge("count", "consume"),
            Edge("consume", "queue"),
        ),
    )


@dataclass(frozen=True, slots=True)
class E2dfCase:
    """A scenario under given assumptions. hosts: the most; spare: C_r."""

    scenario: str
    assumptions: E2dfAssumptions = field(default_factory=E2dfAssumptions)
    seed: int = 1
    hosts: int = STATIC_HOSTS
    spare: int = FIRST_HOSTS

    @property
    def policy(self) -> Policy:
        if self.scenario == "static":
            return Static(STATIC_HOSTS, STATIC)
        return E2df(
            SCALE_OUT,
            SCALE_IN,
            spare=self.spare,
            initial=FIRST_HOSTS,
            low=0.1,
            infrastructure=self.scenario == "both levels",
            period=APPLICATION_PERIOD,
            infrastructure_period=INFRASTRUCTURE_PERIOD,
            seed=self.seed,
        )


@dataclass(frozen=True, slots=True)
class E2dfRun:
    """Results of a case: means over time; latency in seconds.

    running: hosts that are up. series: (minutes, tuples/s, latency in ms, replicas, hosts).
    """

    case: E2dfCase
    latency: float
    replicas: float
    hosts: float
    running: float
    sentences: float
    left: float
    scalings: int
    moves: int
    leases: int
    refused: int
    series: tuple[tuple[float, ...], ...]

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "mean latency (ms)": 1e3 * self.latency,
            "replicas (mean)": self.replicas,
            "replicas without the source's (mean)": self.replicas - STATIC["source"],
            "hosts that are paid (mean)": self.hosts,
            "hosts that are up (mean)": self.running,
            "replicas (most)": max(row[3] for row in self.series),
            "hosts (most)": max(row[4] for row in self.series),
            "scalings": self.scalings,
            "moves": self.moves,
            "leases": self.leases,
            "sentences": self.sentences,
            "left waiting": self.left,
        }


def make(case: E2dfCase) -> SimulatedPlant:
    """Return the plant of a case at time 0."""
    assumptions, static = case.assumptions, case.scenario == "static"
    host = HostType(
        "container", cores=CORES, slots=1, billing=Billing(1.0), start=assumptions.host_start, stop=assumptions.host_stop
    )
    load = ramp(LOWEST, HIGHEST, over=assumptions.rise).then_back()
    return make_plant(
        lay_out(word_count(assumptions), chained=False),
        host_types=[host],
        loads={"sentences": load},
        seed=case.seed,
        settings=Settings(monitor=APPLICATION_PERIOD, variation=assumptions.variation, latency=assumptions.network_latency),
        hosts=FIRST_HOSTS if case.scenario == "both levels" else case.hosts,
        parallelism=STATIC if static else None,
        max_hosts=case.hosts,
        seconds=assumptions.seconds,
    )


def run_case(case: E2dfCase) -> E2dfRun:
    seconds = case.assumptions.seconds
    series: list[tuple[float, ...]] = []

    def look(seen: Observation) -> None:
        latency = seen.latency(Metric.LATENCY).value
        arriving = seen.operators.value("sentences", Metric.ARRIVAL_RATE)
        replicas = float(np.nansum(seen.operators.column(Metric.PARALLELISM)))
        series.append(
            (seen.time / 60, arriving, math.nan if latency is None else 1e3 * latency, replicas, len(seen.leases))
        )

    run = simulated(make(case), case.policy, period=APPLICATION_PERIOD, until=seconds, look=look, roll_back=False)
    result = run.result
    columns = np.array(series)
    source = result.operators["source"]
    return E2dfRun(
        case,
        float(np.nanmean(columns[:, 2])) / 1e3,
        float(columns[:, 3].mean()),
        math.fsum(lease.seconds(seconds) for lease in result.ledger) / seconds,
        math.fsum(_up_seconds(lease, seconds) for lease in result.ledger) / seconds,
        source.arrived,
        sum(operator.queued for operator in result.operators.values()),
        result.upscalings + result.downscalings,
        result.migrations,
        result.leases,
        run.refused,
        tuple(series),
    )


def _up_seconds(lease: Lease, now: float) -> float:
    ready = lease.ready_at()
    left = next((at for at, state in lease.history if state in (HostState.RELEASING, HostState.LOST)), now)
    return 0.0 if ready is None else left - ready


def by_scenario(runs: Sequence[E2dfRun]) -> dict[str, list[E2dfRun]]:
    """Return the runs of each scenario by seed."""
    ordered = sorted(runs, key=lambda run: run.case.seed)
    return {name: [run for run in ordered if run.case.scenario == name] for name in SCENARIOS}


def saved(runs: Sequence[E2dfRun], name: str, metric: str) -> list[float]:
    """Return by seed the part by which `metric` is below the static scenario's."""
    mine, static = (by_scenario(runs)[scenario] for scenario in (name, "static"))
    return [1 - a.metrics[metric] / b.metrics[metric] for a, b in zip(mine, static, strict=True)]


def bars(runs: Sequence[E2dfRun]) -> tuple[Check, ...]:
    """Return the bars of both elastic scenarios against the static one."""
    checks = []
    for name in SCENARIOS[1:]:
        checks += [
            mean_within(
                f"{name}: replicas below static, on average",
                saved(runs, name, "replicas (mean)"),
                FEWER_REPLICAS - POINTS,
                FEWER_REPLICAS + POINTS,
                "paper, section 5: 55 %",
            ),
            mean_within(
                f"{name}: mean latency over static's",
                [1 - each for each in saved(runs, name, "mean latency (ms)")],
                SLOWER - RATIO,
                SLOWER + RATIO,
                "paper, section 5: 19.3 ms against 11.4 ms",
            ),
        ]
    checks.append(
        mean_within(
            "both levels: hosts that are up below static, on average",
            saved(runs, "both levels", "hosts that are up (mean)"),
            FEWER_HOSTS - POINTS,
            FEWER_HOSTS + POINTS,
            'paper, section 5: "the number of active worker nodes [...] is reduced on average by 24%"',
        )
    )
    return tuple(checks)
