"""Pages of OTD and Elastic Allocator on a small Spark cluster, beside even and random placement."""

import statistics
import time
from collections.abc import Mapping, Sequence

from elastream.clouds.local.network import Link
from elastream.core.plant import Policy
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table
from elastream.policies.elastic_allocator.policy import ElasticAllocator
from elastream.policies.otd import Otd
from elastream.policies.placements import Even, Random
from elastream_papers.harness.report import report
from elastream_papers.placing import on_spark as spark

MEASURED, QUICK_MEASURED = 15.0, 8.0  # seconds per placement: at least four batches; `quick` is a functional check
PLACED, ROUNDS, QUICK_ROUNDS = 15.0, 60.0, 20.0  # seconds for placements at once and in rounds; both end when idle
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
OTD, GMA = "OTD, from even", "Elastic Allocator"
CPU, SPREAD = "CPU of hosts (mean, of the quota)", "CPU of hosts (deviation)"


def run_otd_spark(options: ExperimentOptions) -> Findings:
    """Run both kinds of application, each on its own cluster. quick: the communication-intensive one."""
    begun, found, kinds = time.monotonic(), dict[str, dict[str, spark.PlacementFigures]](), dict[str, None]()
    cases = dict(list(CASES.items())[: 1 if options.quick else None])
    for number, (case, (query, link)) in enumerate(cases.items()):
        options.progress(case, number, len(cases))
        with spark.cluster([query], link) as plant:
            kinds.update({plant.confinement: None, spark.network_kind(plant): None})
            # Executors get faster while they compile: even is measured before and after OTD.
            steps: tuple[tuple[str, Policy, float], ...] = (
                ("even", Even(), PLACED),
                (OTD, Otd(HIGH, LOW, period=spark.ROUND), QUICK_ROUNDS if options.quick else ROUNDS),
                ("even again", Even(), PLACED),
            )
            measured = QUICK_MEASURED if options.quick else MEASURED
            found[case] = {
                name: spark.phase(plant, spark.settle(plant, policy, seconds), measured) for name, policy, seconds in steps
            }
    return otd_outcome(found, tuple(kinds), time.monotonic() - begun)


def otd_outcome(
    found: Mapping[str, Mapping[str, spark.PlacementFigures]], kinds: Sequence[str], seconds: float
) -> Findings:
    """Return the findings: phases by case and name. kinds: descriptions of hosts and network."""
    checks = [check for case, phases in found.items() for check in _otd_bars(case, phases)]
    tables = [table for case, phases in found.items() for table in _tables(f"{case}-intensive, on Spark", phases)]
    paper = [
        Table(f"{case}-intensive in the paper", ("", "OTD against Storm"), tuple(OTD_PAPER[case].items())) for case in found
    ]
    prose = (
        "Online nonstop task management for Storm-based distributed stream processing engines (Zhang et al., 2024), "
        "section 5.3, on a real Spark cluster of this machine. Tasks are state partitions of two stages in a row, "
        f"{spark.PARTITIONS} each on {spark.HOSTS} hosts of {spark.HOST.cores:g} cores; a partition of the first sends "
        "nine tenths to one of the second, drawn by chance. One query, moved by OTD one partition a round; bars "
        "compare with the "
        "mean of the even deployment before and after."
    )
    figures = {case: {name: each.metrics for name, each in phases.items()} for case, phases in found.items()}
    return _outcome("OTD on Spark", prose, figures, OTD_PAPER, checks, (*tables, *paper), kinds, seconds)


def run_elastic_allocator_spark(options: ExperimentOptions) -> Findings:
    """Allocate a query beside a running one: evenly, randomly and by the allocator."""
    begun = time.monotonic()
    measured = QUICK_MEASURED if options.quick else MEASURED
    with spark.cluster(BESIDE) as plant:
        kinds = (plant.confinement, spark.network_kind(plant))
        mine = spark.operators_of(plant, ALLOCATED)
        spark.settle(plant, Even(spark.operators_of(plant, RUNNING)), PLACED)
        steps: list[tuple[str, Policy]] = [
            ("even", Even(mine)),
            *((f"random, seed {seed}", Random(seed, mine)) for seed in ((1,) if options.quick else (1, 2, 3))),
            (GMA, ElasticAllocator(mine, period=spark.ROUND)),
            ("even again", Even(mine)),
        ]
        found = {}
        for number, (name, policy) in enumerate(steps):
            options.progress(name, number, len(steps))
            found[name] = spark.phase(plant, spark.settle(plant, policy, PLACED), measured)
    return allocator_outcome(found, kinds, time.monotonic() - begun)


def allocator_outcome(found: Mapping[str, spark.PlacementFigures], kinds: Sequence[str], seconds: float) -> Findings:
    """Return the findings for the allocated query: phases by name."""
    ours = found[GMA].metrics
    source = "paper, section V-B: lowest deviation and highest utilisation of the three"
    checks = [
        Check(f"{what} of the allocator against {other}", _percent(ours[what]), bound, holds, source)
        for other in ("even", "random")
        for theirs in [_mean(found, other)]
        for what, bound, holds in (
            (SPREAD, f"below {_percent(theirs[SPREAD])}", ours[SPREAD] < theirs[SPREAD]),
            (CPU, f"above {_percent(theirs[CPU])}", ours[CPU] > theirs[CPU]),
        )
    ]
    checks.append(_all_accepted("allocator", found))
    prose = (
        "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud (2014), section V, on a real Spark "
        f"cluster of this machine: {spark.PARTITIONS} state partitions of one query on {spark.HOSTS} hosts "
        f"of {spark.HOST.cores:g} cores beside as many of another that runs there, both of unequal load. Bars compare with "
        "the means of both "
        "measurements of even and of all of random. The paper gives curves and no figures."
    )
    tables = _tables("Allocated beside a running query, on Spark", found)
    figures = {name: each.metrics for name, each in found.items()}
    return _outcome("Elastic Allocator on Spark", prose, figures, {}, checks, tables, kinds, seconds)


LESS = "paper, section 5.3: less in both kinds of application"


def _otd_bars(case: str, phases: Mapping[str, spark.PlacementFigures]) -> list[Check]:
    even, otd = _mean(phases, "even"), phases[OTD].metrics
    bars = [(CROSSING, f"below even's {_percent(even[CROSSING])}", otd[CROSSING] < even[CROSSING], LESS)]
    if case == "computation":
        bars.append((CPU, f"above even's {_percent(even[CPU])}", otd[CPU] > even[CPU], "paper, Figure 12(b)"))
    checks = (Check(f"{case}: {what}", _percent(otd[what]), bound, holds, source) for what, bound, holds, source in bars)
    return [_all_accepted(case, phases), *checks]


def _mean(phases: Mapping[str, spark.PlacementFigures], policy: str) -> dict[str, float]:
    mine = [each.metrics for name, each in phases.items() if name.startswith(policy)]
    return {name: statistics.fmean(each[name] for each in mine) for name in mine[0]}


def _all_accepted(who: str, phases: Mapping[str, spark.PlacementFigures]) -> Check:
    refused = sum(each.moves.refused for each in phases.values())
    return Check(
        f"{who}: moves that the plant refused", refused, "0", refused == 0, "the plants take what policies propose"
    )


def _tables(caption: str, phases: Mapping[str, spark.PlacementFigures]) -> tuple[Table, Table]:
    every = tuple(phases.values())
    figures = tuple((name, *(_text(name, each.metrics.get(name)) for each in every)) for name in every[0].metrics)
    use = (
        ("CPU by host", *(", ".join(map(_percent, each.cpu)) for each in every)),
        ("link by host", *(", ".join(map(_percent, each.link)) for each in every)),
    )
    hosts = range(1, len(every[0].sent) + 1)
    sent = tuple(
        (f"{name}: from host {host}", *(f"{rate / 1000:,.1f}" for rate in row))
        for name, each in phases.items()
        for host, row in zip(hosts, each.sent, strict=True)
    )
    return (
        Table(caption, ("", *phases), (*figures, *use)),
        Table(
            f"{caption}: kB/s that executors sent each other in shuffles, or kept",
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


def _text(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    fraction = name.startswith(("CPU", "links", "between"))
    return _percent(value) if fraction else f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.2f}"
