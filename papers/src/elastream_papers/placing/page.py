"""Pages of OTD and Elastic Allocator on a small Spark cluster, beside even and random placement."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from elastream.clouds.local.network import Link
from elastream.core.plant import Policy
from elastream.evaluation.checks import mean_at_least
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table
from elastream.policies.elastic_allocator.policy import ElasticAllocator
from elastream.policies.otd import Otd
from elastream.policies.placements import Even, Random
from elastream_papers.harness.report import report
from elastream_papers.placing import on_spark as spark

MEASURED, QUICK_MEASURED = 15.0, 8.0  # seconds per placement: at least four batches; `quick` is a functional check
PLACED, ADAPTED, QUICK_ADAPTED = 15.0, 60.0, 20.0  # seconds for placements at once and in rounds; both end when idle
ROUNDS = 5  # each on its own cluster, with a seed and an order of its own
IN_PLACE = 0.95  # bar: least share of tasks on their planned hosts while a placement is measured
# OTD's load bounds, missing in the paper. With micro-batches even the busiest host waits for the driver: its use is between
# three quarters and nine tenths.
HIGH, LOW = 0.75, 0.65

# applications as in section 5.3, with host links: traffic so large that batches wait for links, or harmonic numbers that
# take most of a batch
CASES: Mapping[str, tuple[spark.SteadyQuery, Link]] = {
    "communication": (spark.SteadyQuery("distinct", 2000, "count", sent=8192), Link("8mbit")),
    "computation": (spark.SteadyQuery("distinct", 2000, "count", steps=16000, skew=1.0, sent=128), spark.LINK),
}
RUNNING, ALLOCATED = "words", "topk"
# the running query, and the one allocated beside it
BESIDE = (
    spark.SteadyQuery(RUNNING, 1000, steps=8000, skew=1.0, payload=2048),
    spark.SteadyQuery(ALLOCATED, 1000, steps=4000, skew=1.0, payload=4096),
)

OTD_PAPER: Mapping[str, Mapping[str, str]] = {
    "communication": {
        "between nodes, of what tasks send": "from 50 % to below 6 % (section 5.3.2, Figure 13(c))",
        "throughput": "+19 % (Figure 13(a))",
    },
    "computation": {
        "CPU of workers (mean)": "from 51 % to 77 % (section 5.3.1, Figure 12(b))",
        "between nodes, of what tasks send": "from 50 % to below 20 % (Figure 12(c))",
        "throughput": "+14 % (Figure 12(a))",
    },
}
CROSSING = "between hosts, of what tasks with state send each other"
EVEN = "even"
OTD, RELIEF = "OTD", "OTD with relief"
GMA, SEARCH = "Elastic Allocator", "Elastic Allocator with search"
SLOTS = spark.PARTITIONS  # of a host, twice as many as the running query fills: the allocator has a choice
CPU, SPREAD = "CPU of hosts (mean, of the quota)", "CPU of hosts (deviation)"

Phases: TypeAlias = Mapping[str, spark.PlacementFigures]


def run_otd_spark(options: ExperimentOptions) -> Findings:
    """Run both kinds of application in rounds. quick: one round of the communication-intensive one."""
    begun, found, kinds = time.monotonic(), dict[str, list[Phases]](), dict[str, None]()
    cases, rounds = dict(list(CASES.items())[: 1 if options.quick else None]), 1 if options.quick else ROUNDS
    for number in range(rounds):
        for at, (case, (query, link)) in enumerate(cases.items()):
            options.progress(f"{case}, round {number + 1}", number * len(cases) + at, rounds * len(cases))
            with spark.cluster([replace(query, seed=number + 1)], link) as plant:
                kinds.update({plant.confinement: None, spark.network_kind(plant): None})
                found.setdefault(case, []).append(_otd_round(plant, number, options.quick))
    return otd_outcome(found, tuple(kinds), time.monotonic() - begun)


def _otd_round(plant: spark.WatchedPlant, number: int, quick: bool) -> Phases:
    """Measure both forms of OTD, each between even placements."""
    # Executors get faster while they compile.
    forms = [(OTD, Otd(HIGH, LOW, relief=0.0, period=spark.ROUND)), (RELIEF, Otd(HIGH, LOW, period=spark.ROUND))]
    steps: list[tuple[str, Policy, float]] = [(EVEN, Even(), PLACED)]
    for name, policy in forms[:: -1 if number % 2 else 1]:
        steps += [(name, policy, QUICK_ADAPTED if quick else ADAPTED), (f"{EVEN} after {name}", Even(), PLACED)]
    return _measure(plant, steps, quick)


def _measure(plant: spark.WatchedPlant, steps: Sequence[tuple[str, Policy, float]], quick: bool) -> Phases:
    measured = QUICK_MEASURED if quick else MEASURED
    return {name: spark.phase(plant, spark.settle(plant, policy, seconds), measured) for name, policy, seconds in steps}


def otd_outcome(found: Mapping[str, Sequence[Phases]], kinds: Sequence[str], seconds: float) -> Findings:
    """Return the findings: rounds by case. kinds: descriptions of hosts and network."""
    checks = [check for case, rounds in found.items() for check in _otd_bars(case, rounds)]
    tables = [table for case, rounds in found.items() for table in _tables(f"{case}-intensive, on Spark", rounds)]
    paper = [
        Table(f"{case}-intensive in the paper", ("", "OTD against Storm"), tuple(OTD_PAPER[case].items())) for case in found
    ]
    prose = (
        "Online nonstop task management for Storm-based distributed stream processing engines (Zhang et al., 2024), "
        "section 5.3, on a real Spark cluster of this machine. Tasks are state partitions of two stages in a row, "
        f"{spark.PARTITIONS} each on {spark.HOSTS} hosts of {spark.HOST.cores:g} cores; a partition of the first sends "
        "nine tenths to one of the second, drawn by chance. One query, moved by OTD one partition a round; bars judge "
        "the published algorithm against the mean of the even deployments of its round."
    )
    return _outcome(
        "OTD on Spark",
        prose,
        {case: _figures(found[case]) for case in found},
        OTD_PAPER,
        checks,
        (*tables, *paper),
        kinds,
        seconds,
    )


def run_elastic_allocator_spark(options: ExperimentOptions) -> Findings:
    """Allocate a query beside a running one: evenly, randomly and by the allocator. quick: one round."""
    begun, found, kinds = time.monotonic(), list[Phases](), tuple[str, ...]()
    rounds = 1 if options.quick else ROUNDS
    for number in range(rounds):
        options.progress(f"round {number + 1}", number, rounds)
        with spark.cluster([replace(query, seed=number + 1) for query in BESIDE], slots=SLOTS) as plant:
            kinds = (plant.confinement, spark.network_kind(plant))
            mine = spark.operators_of(plant, ALLOCATED)
            spark.settle(plant, Even(spark.operators_of(plant, RUNNING)), PLACED)
            policies: dict[str, Policy] = {
                EVEN: Even(mine),
                "random": Random(number + 1, mine, slots=True),
                GMA: ElasticAllocator(mine, period=spark.ROUND, search=False, slots=True),
                SEARCH: ElasticAllocator(mine, period=spark.ROUND, slots=True),
            }
            steps = [(name, policy, PLACED) for name, policy in policies.items()]
            at = number % len(steps)
            found.append(_measure(plant, [*steps[at:], *steps[:at]], options.quick))
    return allocator_outcome(found, kinds, time.monotonic() - begun)


def allocator_outcome(rounds: Sequence[Phases], kinds: Sequence[str], seconds: float) -> Findings:
    """Return the findings for the allocated query."""
    source = "paper, section V-B: lowest deviation and highest utilisation of the three"
    checks = [
        mean_at_least(
            f"{what} of the allocator {side} that of {other}", _gains(rounds, GMA, other, what, sign), 0.0, source
        )
        for other in (EVEN, "random")
        for what, side, sign in ((SPREAD, "below", -1), (CPU, "above", 1))
    ]
    checks += _placed("allocator", rounds)
    prose = (
        "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud (2014), section V, on a real Spark "
        f"cluster of this machine: {spark.PARTITIONS} state partitions of one query on {spark.HOSTS} hosts "
        f"of {spark.HOST.cores:g} cores and {SLOTS} slots beside as many of another that runs there, both of unequal load. "
        "Bars judge Algorithm 1 alone. The paper gives curves and no figures."
    )
    tables = _tables("Allocated beside a running query, on Spark", rounds)
    return _outcome("Elastic Allocator on Spark", prose, {"rounds": _figures(rounds)}, {}, checks, tables, kinds, seconds)


LESS = "paper, section 5.3: less in both kinds of application"


def _otd_bars(case: str, rounds: Sequence[Phases]) -> list[Check]:
    bars = [mean_at_least(f"{case}: less {CROSSING} than under even", _gains(rounds, OTD, EVEN, CROSSING, -1), 0.0, LESS)]
    if case == "computation":
        bars.append(
            mean_at_least(f"{case}: {CPU} above even's", _gains(rounds, OTD, EVEN, CPU), 0.0, "paper, Figure 12(b)")
        )
    return [*_placed(case, rounds), *bars]


def _gains(rounds: Sequence[Phases], ours: str, other: str, figure: str, sign: float = 1.0) -> list[float]:
    """Return by round how much `figure` of `ours` exceeds the mean of the placements named `other`."""
    return [
        sign
        * (
            phases[ours].metrics[figure]
            - statistics.fmean(each.metrics[figure] for name, each in phases.items() if name.startswith(other))
        )
        for phases in rounds
    ]


def _placed(who: str, rounds: Sequence[Phases]) -> tuple[Check, Check]:
    """Return checks of moves and of the placements measured."""
    every = [each for phases in rounds for each in phases.values()]
    refused, source = sum(each.moves.refused for each in every), "the plants take what policies propose"
    return (
        Check(f"{who}: moves that the plant refused", refused, "0", refused == 0, source),
        Check.at_least(f"{who}: tasks where planned, least", min(each.in_place for each in every), IN_PLACE, "our bar"),
    )


def _figures(rounds: Sequence[Phases]) -> list[dict[str, dict[str, float]]]:
    return [{name: each.metrics for name, each in phases.items()} for phases in rounds]


def _tables(caption: str, rounds: Sequence[Phases]) -> tuple[Table, Table]:
    """Return the mean figures of the rounds, and the traffic of the first."""
    first = rounds[0]
    figures = tuple(
        (figure, *(_text(figure, statistics.fmean(phases[name].metrics[figure] for phases in rounds)) for name in first))
        for figure in next(iter(first.values())).metrics
    )
    use = (
        ("CPU by host, first round", *(", ".join(map(_percent, each.cpu)) for each in first.values())),
        ("link by host, first round", *(", ".join(map(_percent, each.link)) for each in first.values())),
    )
    hosts = range(1, spark.HOSTS + 1)
    sent = tuple(
        (f"{name}: from host {host}", *(f"{rate / 1000:,.1f}" for rate in row))
        for name, each in first.items()
        for host, row in zip(hosts, each.sent, strict=True)
    )
    return (
        Table(f"{caption}, means of {len(rounds)} rounds", ("", *first), (*figures, *use)),
        Table(
            f"{caption}, first round: kB/s that executors sent each other in shuffles, or kept",
            ("", *(f"to host {n}" for n in hosts)),
            sent,
        ),
    )


def _outcome(
    title: str,
    prose: str,
    figures: Mapping[str, object],
    paper: Mapping[str, object],
    checks: Sequence[Check],
    tables: Sequence[Table],
    kinds: Sequence[str],
    seconds: float,
) -> Findings:
    where = "; ".join(kinds)
    about = f"Hosts: {where}. Figures are measured on Spark. Deviation is the root of the summed squares off the mean."
    return report(title, (prose, about), figures, checks, {"": tables}, seconds, paper=paper, plant="spark", hosts=where)


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _text(name: str, value: float) -> str:
    fraction = name.startswith(("CPU", "links", "between", "tasks"))
    return _percent(value) if fraction else f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2f}"
