"""Page of the OTD experiment: figures next to the paper's, curves as in Figures 12 and 13, and cluster sizes.

Simulated figures and the paper's never share a row. `experiment` computes the figures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from elastream.experiments.assumptions import assumption_table, values, variations
from elastream.experiments.cases import ExperimentOptions, run_all
from elastream.experiments.findings import Check, Findings, check_table, counted, environment, variation_table
from elastream.experiments.otd.experiment import (
    APPLICATIONS,
    FEWER_SEEDS,
    MAIN,
    PAPER,
    POLICIES,
    SEEDS,
    SIZES,
    Cluster,
    OtdAssumptions,
    OtdCase,
    OtdRun,
    bars,
    mean_of,
    run_case,
)
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, comparison_table, line
from elastream.model.wording import percent

Figures = dict[str, dict[str, dict[str, float]]]


def run_otd(options: ExperimentOptions) -> Findings:
    """Both applications under the three policies with `SEEDS`, and on 2 to 16 worker nodes.

    quick: with `FEWER_SEEDS`, and on two worker nodes only. sensitivity: also with every assumption halved and doubled.
    """
    given = OtdAssumptions()
    seeds = FEWER_SEEDS if options.quick else SEEDS
    wanted = [OtdCase(a, p, MAIN, seed, given) for a in APPLICATIONS for p in POLICIES for seed in _numbers(seeds, a)]
    if not options.quick:
        wanted += [
            OtdCase(a, p, size, seed, given) for size in SIZES for a in APPLICATIONS for p in POLICIES for seed in (1, 2)
        ]
    if options.sensitivity:
        wanted += [
            OtdCase(a, p, MAIN, seed, varied)
            for varied in variations(given).values()
            for a in APPLICATIONS
            for p in ("even", "otd")
            for seed in _numbers(FEWER_SEEDS, a)
        ]
    runs, seconds = run_all(
        run_case,
        wanted,
        options,
        lambda case, done, of: options.progress(f"{case.application}, {case.policy}", done, of),
    )
    return outcome(runs, seconds)


def _numbers(seeds: Mapping[str, int], application: str) -> range:
    return range(1, seeds[application] + 1)


def figures_of(
    runs: Sequence[OtdRun], cluster: Cluster, assumptions: OtdAssumptions, seeds: Mapping[str, int] = SEEDS
) -> Figures:
    """Means over the first `seeds`, by application and policy."""
    found: Figures = {}
    for application in APPLICATIONS:
        found[application] = {}
        for policy in POLICIES:
            mine = [
                run
                for run in runs
                if (run.case.application, run.case.policy) == (application, policy)
                and run.case.cluster == cluster
                and run.case.assumptions == assumptions
                and run.case.seed in _numbers(seeds, application)
            ]
            if mine:
                found[application][policy] = mean_of(mine)
    return found


def outcome(runs: Sequence[OtdRun], seconds: float) -> Findings:
    """The findings of the runs; the bars apply to the paper's cluster."""
    given = OtdAssumptions()
    main = figures_of(runs, MAIN, given)
    sizes = {size.name: found for size in SIZES if (found := figures_of(runs, size, given))["communication"]}
    # The same seeds throughout: the CPU use of the even start depends on them.
    varied = {"as assumed": figures_of(runs, MAIN, given, FEWER_SEEDS)}
    varied |= {
        f"{name} x {factor:g}": found
        for (name, factor), other in variations(given).items()
        if (found := figures_of(runs, MAIN, other, FEWER_SEEDS))["communication"]
    }
    varied = varied if len(varied) > 1 else {}
    exact = [
        run.best for run in runs if run.best == run.best and run.case.cluster == MAIN and run.case.assumptions == given
    ]
    best = sum(exact) / len(exact)
    checks = bars(main)
    return Findings(
        {
            MAIN.name: main,
            "exact packing, CPU use of workers": best,
            "sizes": sizes,
            "sensitivity": {name: {c.name: c.value for c in bars(found)} for name, found in varied.items()},
            "assumptions": values(given),
            "refused": sum(run.refused for run in runs),
            "seconds": round(seconds, 2),
        },
        {MAIN.name: PAPER},
        checks,
        _page(runs, main, sizes, varied, best, checks),
        environment(plant="simulated", runs=len(runs), seconds=round(seconds, 1)),
        verdict(main, best, checks),
    )


def verdict(main: Figures, best: float, checks: Sequence[Check]) -> str:
    cpu = {policy: main["computation"][policy]["CPU use of workers, settled"] for policy in POLICIES}
    text = (
        f"Computation-intensive: the even deployment uses {percent(cpu['even'])} of the workers' CPU, Algorithm 1 as "
        f"published {percent(cpu['otd as published'])} and with the rule that a move must relieve somebody "
        f"{percent(cpu['otd'])}, both where they have settled; the exact packing of each interval would bring "
        f"{percent(best)}, {percent(best / cpu['even'] - 1)} above even, which nothing can exceed. In this model "
        "throughput rises as CPU use does; the paper reports 14 % against 51 %."
    )
    missed = [check.name for check in checks if check.missed]
    return text + (f" Missed: {'; '.join(missed)}." if missed else "")


def size_table(sizes: Mapping[str, Figures]) -> Table:
    """Figures 14 and 15, whose numbers the paper's text does not give."""
    rows = []
    for name, found in sizes.items():
        for application in APPLICATIONS:
            mine = found[application]
            rows.append(
                (
                    f"{name}, {application}",
                    *(percent(mine[p]["CPU use of workers, mean"]) for p in POLICIES),
                    *(percent(mine[p]["traffic between nodes, mean"]) for p in POLICIES),
                )
            )
    header = ("cluster", *(f"CPU, {p}" for p in POLICIES), *(f"between nodes, {p}" for p in POLICIES))
    return Table("Sizes, means over 600 s, simulated (compare Figures 14 and 15)", header, tuple(rows))


def _page(
    runs: Sequence[OtdRun],
    main: Figures,
    sizes: Mapping[str, Figures],
    varied: Mapping[str, Figures],
    best: float,
    checks: Sequence[Check],
) -> Page:
    blocks: list[Block] = [
        Prose(
            "Online nonstop task management for Storm-based distributed stream processing engines (Zhang, Jin, Wang, Liu "
            "and Wan, 2024), section 5.3, on the simulated plant. Every figure that is not marked as the paper's is "
            "simulated. "
            "Traffic is what tasks send each other; what clients send to the first of them is not in it."
        ),
        Prose(f"{counted(checks)}. {verdict(main, best, checks)}"),
        check_table(checks),
        *(
            comparison_table(
                f"{application}-intensive, {MAIN.name} workers, simulated",
                main[application],
                PAPER[application],
                "section 5.3",
                _text,
            )
            for application in APPLICATIONS
        ),
        Heading("Over time"),
        *(plot for application in APPLICATIONS for plot in _plots(runs, application)),
    ]
    if sizes:
        blocks += [
            Heading("From 2 to 16 worker nodes"),
            Prose(
                "In the communication-intensive case tasks gather until a node's workers are no longer at low load: the "
                "larger the cluster, the more nodes its load needs, and the more goes between them. One move every five "
                "seconds also needs longer for more tasks; the means are over the same 600 s."
            ),
            size_table(sizes),
        ]
    if varied:
        blocks.append(variation_table({name: bars(found) for name, found in varied.items()}))
    blocks.append(assumption_table(OtdAssumptions()))
    return Page("OTD: tasks moved one by one to where they talk, and off hosts that are full (simulated)", tuple(blocks))


def _plots(runs: Sequence[OtdRun], application: str) -> list[Plot]:
    first = {
        run.case.policy: run
        for run in reversed(runs)
        if run.case.application == application and run.case.cluster == MAIN and run.case.assumptions == OtdAssumptions()
    }
    plots = []
    for column, what, y in ((1, "CPU use of workers", "part of their cores"), (2, "traffic between nodes", "part of all")):
        lines: list[dict[str, Any]] = [
            line(p, [row[0] for row in first[p].series], [row[column] for row in first[p].series], colour=n)
            for n, p in enumerate(POLICIES)
        ]
        figure = "Figure 12" if application == "computation" else "Figure 13"
        caption = f"{application}-intensive: {what} (simulated, compare {figure})"
        plots.append(Plot(caption, "s", y, tuple(lines)))
    return plots


def _text(metric: str, value: float) -> str:
    return percent(value) if "CPU" in metric or "traffic" in metric else f"{value:,.0f}"
