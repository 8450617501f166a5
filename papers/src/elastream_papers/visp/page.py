"""Page of the simulated VISP experiment: Tables 3 to 6, plots as in Figures 8 to 11."""

import math
from collections.abc import Mapping, Sequence

from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Findings
from elastream.evaluation.page import Block, Table, hosts_plot, load_curve
from elastream.report.plots import Plot
from elastream_papers.harness.assumptions import assumption_table, scaled, variations
from elastream_papers.harness.report import Sections, by_verdict, comparison_table, report
from elastream_papers.harness.sensitivity import Varied, sensitivity, turned
from elastream_papers.visp import experiment as visp
from elastream_papers.visp.bars import Figures, bars, tabulate
from elastream_papers.visp.manufacturing import HOLD_EVERY, HOLD_SECONDS, MONITORING, VispAssumptions
from elastream_papers.visp.paper import COLUMNS, TABLES, Statistic, implied

# the paper's figure by pattern
FIGURES: Mapping[str, str] = {"stepwise": "8", "two-level": "9", "walk 1": "10", "walk 2": "11"}
VARIED_SEEDS = visp.SEEDS[:3]
# Factors beyond those of every assumption: some published versions of O2 and O6 wait 200 ms; 3.5 is O3's messaging
BEYOND = (("light_work", 10.0), *(("heavy_messaging", factor) for factor in (0.25, 0.75, 1.5, 3.5)))
NOTHING: Varied = {}


def outcome(
    runs: Sequence[visp.VispRun], seconds: float, varied: Varied = NOTHING, delayed: Sequence[visp.VispRun] = ()
) -> Findings:
    """Return the findings; the bars are of the text's rule. delayed: runs with network delays."""
    figures = tabulate(runs)
    checks = bars(figures)
    base = bars(tabulate([run for run in runs if run.case.pattern == "stepwise" and run.case.seed in VARIED_SEEDS]))
    return report(
        "VISP: provisioning by billing time unit (simulated)",
        "Cost-efficient enactment of stream processing topologies (Hochreiner et al., PeerJ CS 2017), reproduced on "
        "the simulated plant. Every figure that is not marked as the paper's is simulated. Durations are per operator "
        "and contain messaging, as the paper's do. Columns 'btu' are the rule of the paper's text, which the bars judge: "
        "a host that cannot be emptied at the end of its BTU keeps all its instances. Columns 'partial' are our option: "
        "such a host loses the instances that may be given up.",
        {
            "tables": {pattern: _columns(columns) for pattern, columns in figures.items()},
            "items": {pattern: columns["btu 10"]["items"].mean for pattern, columns in figures.items()},
            "with network delays": {pattern: _columns(columns) for pattern, columns in tabulate(delayed).items()},
            "sensitivity": turned(base, varied),
        },
        checks,
        _sections(runs, figures, sensitivity(base, varied), delayed),
        seconds,
        paper={
            **{pattern: _columns(printed(pattern)) for pattern in figures},
            "items that its penalties mean": {pattern: implied(pattern) for pattern in figures},
        },
        verdict=by_verdict(checks, missed="Missed", undecided="Undecided"),
        runs=len(runs) + len(delayed),
    )


def run_visp(options: ExperimentOptions) -> Findings:
    """Run the whole experiment. quick: the stepwise pattern's seven runs, one seed.

    sensitivity: also a curve over every assumption, with `BEYOND`.
    """
    wanted, delayed = visp.cases(("stepwise",), (1,)), list[visp.VispCase]()
    if not options.quick:
        wanted = [*visp.cases(policies=visp.JUDGED), *visp.cases(seeds=visp.FEWER_SEEDS, policies=("partial",))]
        delayed = visp.cases(("two-level",), visp.FEWER_SEEDS, policies=visp.JUDGED, delayed=True)
    assumptions = VispAssumptions()
    changes = (
        {**variations(assumptions), **{each: scaled(assumptions, *each) for each in BEYOND}} if options.sensitivity else {}
    )
    seeds = (1,) if options.quick else VARIED_SEEDS
    # One batch, so that workers are not idle between two variations.
    batches = [wanted, delayed, *(visp.cases(("stepwise",), seeds, changed, visp.JUDGED) for changed in changes.values())]
    found, seconds = run_all(
        visp.run_case,
        [case for batch in batches for case in batch],
        options,
        lambda case: f"{case.pattern}, {case.name}, seed {case.seed}",
        warm=lambda case: visp.make(case).advance(MONITORING),
    )
    results = iter(found)
    runs, delayed_runs, *others = ([next(results) for _ in batch] for batch in batches)
    varied = {change: bars(tabulate(mine)) for change, mine in zip(changes, others, strict=True)}
    return outcome(runs, seconds, varied, delayed_runs)


def printed(pattern: str) -> dict[str, dict[str, Statistic]]:
    """Return the paper's figures of a pattern, by column and metric."""
    return {column: {metric: row[column] for metric, row in TABLES[pattern].rows.items()} for column in COLUMNS}


def _sections(
    runs: Sequence[visp.VispRun],
    figures: Figures,
    hanging: Sequence[Block],
    delayed: Sequence[visp.VispRun],
) -> Sections:
    delays = [delays_table(figures, tabulate(delayed))] if delayed else []
    patterns: dict[str, list[Block]] = {}
    for pattern, columns in figures.items():
        name = TABLES[pattern].name
        caption = f"{pattern}: simulated beside the paper's {name}, mean (σ) over {len(seeds_of(runs))} seeds"
        paper = printed(pattern)
        plots = [_plot(run) for run in runs if run.case.pattern == pattern and run.case.seed == runs[0].case.seed]
        patterns[pattern] = [comparison_table(caption, columns, paper, name, written), *plots]
    return {
        "": [items_table(figures), *delays],
        **patterns,
        "What is assumed": [assumption_table(VispAssumptions())],
        "What depends on it": hanging,
    }


def seeds_of(runs: Sequence[visp.VispRun]) -> set[int]:
    return {run.case.seed for run in runs}


def items_table(figures: Figures) -> Table:
    """Return our items and those each column implies (millions); `implied_items`."""
    rows = []
    for pattern, columns in figures.items():
        here = f"{columns['btu 10']['items'].mean / 1e6:.2f}"
        for level, row in implied(pattern).items():
            rows.append((f"{pattern}, {level}", here, *(f"{value / 1e6:.2f}" for value in row.values())))
    caption = "Items that are judged (millions): simulated, and as the paper's penalties and compliance mean them"
    return Table(caption, ("", "here", *(f"paper, {column}" for column in COLUMNS)), tuple(rows))


def delays_table(without: Figures, delayed: Figures) -> Table:
    """Return changes under network delays, mean (σ), by pattern."""
    metrics = (
        "near-real-time compliance", "resource cost", "upscalings", "scaling actions", "objective (Eq. 1)",
        *(f"instances, minutes {name}" for name in visp.TIMES),
    )  # fmt: skip
    rows = []
    for pattern, columns in delayed.items():
        for metric in metrics:
            rows.append((f"{pattern}: {metric}", *(written(metric, columns[name][metric]) for name in columns)))
            beside = without.get(pattern)
            if beside:
                rows.append(("   without delays", *(written(metric, beside[name][metric]) for name in columns)))
    names = next(iter(delayed.values()))
    what = f"Network delays of {HOLD_SECONDS:g} s about every {HOLD_EVERY:g} s that hold all arrivals up (simulated)"
    return Table(what, ("", *names), tuple(rows))


def _plot(run: visp.VispRun) -> Plot:
    minutes, offered, instances, hosts = (list(column) for column in zip(*run.series, strict=True))
    return hosts_plot(
        f"{run.case.pattern}, {run.case.name} {run.case.minutes or ''} "
        f"(simulated; compare Figure {FIGURES[run.case.pattern]})",
        "minutes",
        minutes,
        load_curve("data volume", minutes, offered, steps=True),
        "items/s",
        instances,
        hosts,
        "operator instances",
    )


def written(metric: str, value: Statistic) -> str:
    if math.isnan(value.mean):
        return "-"
    if "compliance" in metric:
        return f"{value.mean:.1%} ({value.deviation:.1%})"
    if metric == "items":
        return f"{value.mean:,.0f}"
    return f"{value.mean:.2f} ({value.deviation:.2f})"


def _columns(columns: Mapping[str, Mapping[str, Statistic]]) -> dict[str, dict[str, dict[str, float | None]]]:
    return {column: {metric: _json(value) for metric, value in metrics.items()} for column, metrics in columns.items()}


def _json(value: Statistic) -> dict[str, float | None]:
    found = {"mean": value.mean, "deviation": value.deviation}
    return {name: None if math.isnan(number) else number for name, number in found.items()}
