"""Page of the simulated OTD experiment, with curves as in Figures 12 to 15."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from elastream.core.wording import percent
from elastream.evaluation.cases import run_all
from elastream.evaluation.checks import MeanInterval, ordered
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Prose, Table
from elastream.report.plots import Plot
from elastream_papers.harness.assumptions import assumption_table, scaled, values, variations
from elastream_papers.harness.report import by_verdict, comparison_table, curves, report
from elastream_papers.harness.sensitivity import sensitivity, turned
from elastream_papers.otd import experiment as otd
from elastream_papers.otd.experiment import LATE, MAIN, POLICIES, STRATA, OtdRun

# Printed gain and reach of its bar, as parts
LESS_TRAFFIC, MORE_ANSWERS, LESS_DELAY = (0.88, 0.08), (0.19, 0.05), (0.14, 0.05)  # section 5.3.2, Figure 13
MORE_CPU, KEPT_CPU, MORE_THROUGHPUT = (0.51, 0.10), (0.47, 0.10), (0.14, 0.05)  # section 5.3.1; 75 % is 47 % above 51 %
LEFT_TRAFFIC = 0.20  # Figure 12(c)
JUDGED = ("even", "otd")
BLOCKS = 3  # least blocks that give an interval; two would give one of twelve standard errors


def mean_of(runs: list[OtdRun]) -> dict[str, float]:
    return {name: float(np.mean([run.metrics[name] for run in runs])) for name in runs[0].metrics}


METRICS = ("CPU use of workers, settled", "CPU use of workers, mean", "traffic between nodes, at the end")


def by_policy(runs: Sequence[OtdRun], application: str) -> dict[str, list[OtdRun]]:
    """Return the runs of an application by policy and seed."""
    mine = sorted((run for run in runs if run.case.application == application), key=lambda run: run.case.seed)
    return {policy: [run for run in mine if run.case.policy == policy] for policy in POLICIES}


def gain(runs: Sequence[OtdRun], metric: str, policy: str = "otd", application: str = "computation") -> MeanInterval:
    """Return `metric` under `policy` relative to the even deployment's, with its interval.

    Linearised ratio of means. Independent are blocks of `STRATA` seeds; of less than `BLOCKS`, seeds.
    """
    found = by_policy(runs, application)
    ours, even = ([run.metrics[metric] for run in found[name]] for name in (policy, "even"))
    ratio, base = float(np.mean(ours) / np.mean(even)), float(np.mean(even))
    strata = STRATA if len({(run.case.seed - 1) // STRATA for run in found["even"]}) >= BLOCKS else 1
    blocks: dict[int, list[float]] = {}
    for run, a, b in zip(found["even"], ours, even, strict=True):
        blocks.setdefault((run.case.seed - 1) // strata, []).append((a - ratio * b) / base)
    off = MeanInterval.of([float(np.mean(each)) for each in blocks.values()])
    return MeanInterval(ratio - 1, ratio - 1 + off.low - off.mean, ratio - 1 + off.high - off.mean, len(ours))


def bars(runs: Sequence[OtdRun]) -> tuple[Check, ...]:
    """Return the paper's headline results on `MAIN` as checks of the published algorithm."""

    def check(what: str, found: MeanInterval, printed: tuple[float, float], source: str) -> Check:
        low, high = printed[0] - printed[1], printed[0] + printed[1]
        return Check(what, found.shown(3), f"{low:.2f} to {high:.2f}", found.within(low, high), f"paper, {source}")

    light, heavy = (f"{application}-intensive, {MAIN.name}" for application in otd.APPLICATIONS)
    left = MeanInterval.of([run.remote_end for run in by_policy(runs, "computation")["otd"]])
    return (
        check(
            f"{light}: traffic between nodes below the even deployment's",
            _beside(runs, lambda ours, even: 1 - ours.remote_end / even.remote_end),
            LESS_TRAFFIC,
            "section 5.3.2: 88 %",
        ),
        check(
            f"{light}: throughput after {LATE:g} s above the even deployment's",
            _beside(runs, lambda ours, even: ours.late / even.late - 1),
            MORE_ANSWERS,
            "section 5.3.2, Figure 13(a): 19 %",
        ),
        check(
            f"{light}: time to an answer after {LATE:g} s below the even deployment's",
            _beside(runs, lambda ours, even: 1 - ours.answer / even.answer),
            LESS_DELAY,
            "section 5.3.2, Figure 13(b): 14 %",
        ),
        check(
            f"{heavy}: CPU use above the even deployment's, where both have settled",
            gain(runs, METRICS[0]),
            MORE_CPU,
            "section 5.3.1: from 51 to 77 % in 50 s",
        ),
        check(
            f"{heavy}: CPU use above the even deployment's, mean with all changes",
            gain(runs, METRICS[1]),
            KEPT_CPU,
            "section 5.3.1: kept at 75 % as the load changes",
        ),
        check(
            f"{heavy}: throughput above the even deployment's",
            gain(runs, "sentences/s"),
            MORE_THROUGHPUT,
            "section 5.3.1, Figure 12(a): 14 %",
        ),
        Check(
            f"{heavy}: traffic between nodes, at the end",
            left.shown(3),
            f"<= {LEFT_TRAFFIC:g}",
            left.at_most(LEFT_TRAFFIC),
            "paper, section 5.3.1, Figure 12(c): below 20 % after 250 s",
        ),
    )


def size_bars(runs: Mapping[str, Sequence[OtdRun]]) -> tuple[Check, ...]:
    """Return the claims of Figures 14 and 15 as checks. runs: by size."""
    found = []
    for application, figure in zip(otd.APPLICATIONS, ("15", "14"), strict=True):
        for metric, claim, sign in (("sentences/s", "above", 1), ("traffic between nodes, mean", "below", -1)):
            gains = {size: gain_by_run(mine, metric, application, sign) for size, mine in runs.items()}
            found.append(
                ordered(
                    f"{application}-intensive, {' / '.join(gains)}: {metric} {claim} the even deployment's",
                    " / ".join(f"{float(np.mean(each)):+.3f}" for each in gains.values()),
                    "> 0 at each",
                    list(gains.values()),
                    f"paper, section 5.3.3, Figure {figure}",
                )
            )
    return tuple(found)


def gain_by_run(runs: Sequence[OtdRun], metric: str, application: str, sign: int) -> list[float]:
    """Return by seed how much more of `metric` OTD has than the even deployment, times `sign`."""
    found = by_policy(runs, application)
    pairs = zip(found["otd"], found["even"], strict=True)
    return [sign * (ours.metrics[metric] / even.metrics[metric] - 1) for ours, even in pairs]


def _beside(runs: Sequence[OtdRun], figure: Callable[[OtdRun, OtdRun], float]) -> MeanInterval:
    """Return the interval of `figure` of OTD's and the even run, communication-intensive."""
    found = by_policy(runs, "communication")
    return MeanInterval.of([figure(ours, even) for ours, even in zip(found["otd"], found["even"], strict=True)])


Figures = dict[str, dict[str, dict[str, float]]]


def run_otd(options: ExperimentOptions) -> Findings:
    """Run both applications under the three policies, and with 2 to 16 nodes unless `quick`.

    sensitivity: also a curve over every assumption.
    """
    base = otd.OtdAssumptions()
    sets: list[tuple[otd.Cluster, otd.OtdAssumptions, Sequence[str], Mapping[str, int]]] = [
        (otd.MAIN, base, otd.POLICIES, otd.FEWER_SEEDS if options.quick else otd.SEEDS)
    ]
    if not options.quick:
        sets += [(size, base, JUDGED, otd.FEWER_SEEDS) for size in otd.SIZES]
    if options.sensitivity:
        sets += [(otd.MAIN, varied, JUDGED, otd.VARIED_SEEDS) for varied in changes(base).values()]
    wanted = [
        otd.OtdCase(application, policy, cluster, seed, assumptions)
        for cluster, assumptions, policies, seeds in sets
        for application in otd.APPLICATIONS
        for policy in policies
        for seed in _numbers(seeds, application)
    ]
    runs, seconds = run_all(otd.run_case, wanted, options, lambda case: f"{case.application}, {case.policy}")
    return outcome(runs, seconds)


def changes(assumptions: otd.OtdAssumptions) -> Mapping[tuple[str, float], otd.OtdAssumptions]:
    """Return the variations of the assumptions, and longer intervals between changes of the load."""
    return {
        **variations(assumptions),
        **{("interval", factor): scaled(assumptions, "interval", factor) for factor in (2.5, 5.0)},
    }


def _numbers(seeds: Mapping[str, int], application: str) -> range:
    return range(1, seeds[application] + 1)


def runs_of(
    runs: Sequence[otd.OtdRun], cluster: otd.Cluster, assumptions: otd.OtdAssumptions, seeds: Mapping[str, int] = otd.SEEDS
) -> list[otd.OtdRun]:
    """Return the runs of one cluster and set of assumptions. Of each application, the first `seeds[application]` count."""
    return [
        run
        for run in runs
        if (run.case.cluster, run.case.assumptions) == (cluster, assumptions)
        and run.case.seed in _numbers(seeds, run.case.application)
    ]


def beside(runs: Sequence[otd.OtdRun]) -> dict[str, str]:
    """Return the gain over even placement of our option, with its interval."""
    metrics = (*METRICS[:2], "sentences/s")
    return {f"{metric}, above even": gain(runs, metric, "otd with relief").shown(3) for metric in metrics}


def figures_of(
    runs: Sequence[otd.OtdRun], cluster: otd.Cluster, assumptions: otd.OtdAssumptions, seeds: Mapping[str, int] = otd.SEEDS
) -> Figures:
    """Return means over the first `seeds`, by application and policy."""
    found: Figures = {}
    for application in otd.APPLICATIONS:
        found[application] = {}
        for policy in otd.POLICIES:
            mine = [
                run
                for run in runs_of(runs, cluster, assumptions, seeds)
                if (run.case.application, run.case.policy) == (application, policy)
            ]
            if mine:
                found[application][policy] = mean_of(mine)
    return found


def outcome(runs: Sequence[otd.OtdRun], seconds: float) -> Findings:
    """Return the findings; the bars apply to the paper's cluster."""
    assumptions = otd.OtdAssumptions()
    main = figures_of(runs, otd.MAIN, assumptions)
    sizes = {size.name: found for size in otd.SIZES if (found := figures_of(runs, size, assumptions))["communication"]}
    ours = runs_of(runs, otd.MAIN, assumptions)
    base = bars(runs_of(runs, otd.MAIN, assumptions, otd.VARIED_SEEDS))
    varied = {
        change: bars(mine)
        for change, other in changes(assumptions).items()
        if other != assumptions and (mine := runs_of(runs, otd.MAIN, other, otd.VARIED_SEEDS))
    }
    exact = [run.best for run in ours if run.best == run.best]
    best = sum(exact) / len(exact)
    relief = beside(ours)
    of_sizes = {size.name: runs_of(runs, size, assumptions, otd.FEWER_SEEDS) for size in otd.SIZES if size.name in sizes}
    checks = (*bars(ours), *(size_bars(of_sizes) if of_sizes else ()))
    return report(
        "OTD: tasks moved one by one to where they talk, and off hosts that are full (simulated)",
        "Online nonstop task management for Storm-based distributed stream processing engines (Zhang, Jin, Wang, Liu "
        "and Wan, 2024), section 5.3, on the simulated plant. Every figure that is not marked as the paper's is "
        "simulated. "
        "Traffic is what tasks send each other; what clients send to the first of them is not in it.",
        {
            otd.MAIN.name: main,
            "exact packing, CPU use of workers": best,
            "sizes": sizes,
            "with relief, beside the published algorithm": relief,
            "sensitivity": turned(base, varied),
            "assumptions": values(assumptions),
            "refused": sum(run.refused for run in runs),
        },
        checks,
        {
            "": [
                Table(
                    "Our option `relief`, not judged, simulated: gain over even placement",
                    ("", "gain"),
                    tuple(relief.items()),
                ),
                *(
                    comparison_table(
                        f"{a}-intensive, {otd.MAIN.name} workers, simulated", main[a], otd.PAPER[a], SECTION, _text
                    )
                    for a in otd.APPLICATIONS
                ),
            ],
            "Over time": [plot for application in otd.APPLICATIONS for plot in _plots(runs, application)],
            "From 2 to 16 worker nodes": [Prose(GATHER), size_table(sizes)] if sizes else [],
            "What is assumed": [assumption_table(assumptions)],
            "What depends on it": sensitivity(base, varied),
        },
        seconds,
        paper={otd.MAIN.name: otd.PAPER},
        verdict=verdict(main, best, checks),
        runs=len(runs),
    )


SECTION = "section 5.3"
GATHER = (
    "In the communication-intensive case tasks gather until a node's workers are no longer at low load: the larger the "
    "cluster, the more nodes its load needs, and the more goes between them. One move every five seconds also needs longer "
    "for more tasks; the means are over the same 600 s."
)


def verdict(main: Figures, best: float, checks: Sequence[Check]) -> str:
    cpu = {policy: main["computation"][policy]["CPU use of workers, settled"] for policy in otd.POLICIES}
    said = by_verdict(checks, undecided="Undecided, the bar lies within the interval", missed="Missed")
    return (
        f"{said} Computation-intensive: the even deployment uses {percent(cpu['even'])} of the workers' CPU, the published "
        f"algorithm {percent(cpu['otd'])}, and with our rule that a move must relieve somebody "
        f"{percent(cpu['otd with relief'])}, both where they have settled; the exact packing of each interval would bring "
        f"{percent(best)}, {percent(best / cpu['even'] - 1)} above even, which nothing can exceed. Sentences of one mix "
        "need CPU in proportion to their number: 51 % more CPU with 14 % more throughput, as the paper prints, needs a "
        "mix that became a third heavier."
    ).lstrip()


def size_table(sizes: Mapping[str, Figures]) -> Table:
    """Return our values for Figures 14 and 15, whose numbers the text omits."""
    metrics = ("sentences/s", "CPU use of workers, mean", "traffic between nodes, mean")
    rows = tuple(
        (f"{name}, {a}", *(_text(metric, found[a][p][metric]) for metric in metrics for p in JUDGED))
        for name, found in sizes.items()
        for a in otd.APPLICATIONS
    )
    header = ("cluster", *(f"{what}, {p}" for what in ("sentences/s", "CPU", "between nodes") for p in JUDGED))
    return Table("Sizes, means over 600 s, simulated (compare Figures 14 and 15)", header, rows)


# columns of a run's series to draw, with the paper's figure
FIGURES: Mapping[str, Sequence[tuple[int, str, str, str]]] = {
    "computation": (
        (3, "throughput", "sentences/s", "12(a)"),
        (1, "CPU use of workers", "part of their cores", "12(b)"),
        (2, "traffic between nodes", "part of all", "12(c)"),
    ),
    "communication": (
        (3, "throughput", "sentences/s", "13(a)"),
        (4, "time to an answer", "s", "13(b)"),
        (2, "traffic between nodes", "part of all", "13(c)"),
    ),
}


def _plots(runs: Sequence[otd.OtdRun], application: str) -> list[Plot]:
    mine = [run for run in runs_of(runs, MAIN, otd.OtdAssumptions()) if run.case.application == application]
    first = {run.case.policy: run.series for run in reversed(mine)}
    return [
        curves(
            f"{application}-intensive: {what} (simulated, compare Figure {figure})",
            "s",
            y,
            {policy: [(row[0], row[column]) for row in first[policy]] for policy in otd.POLICIES},
        )
        for column, what, y, figure in FIGURES[application]
    ]


def _text(metric: str, value: float) -> str:
    if "CPU" in metric or "traffic" in metric:
        return percent(value)
    return f"{value:,.2f}" if "ms" in metric else f"{value:,.0f}"
