"""Page of the simulated Elastic Allocator experiment: Figures 4 and 5 in numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from elastream.core.wording import amount, percent
from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Findings
from elastream.evaluation.page import Table, load_curve
from elastream.report.plots import Curve, Plot
from elastream_papers.elastic_allocator.experiment import (
    FIGURES,
    FULL,
    JUDGED,
    OTHERS,
    POLICIES,
    RATES,
    SAME,
    SWEEP,
    WORLD_CUP,
    AllocatorAssumptions,
    AllocatorCase,
    AllocatorRun,
    bars,
    by_policy,
    run_case,
)
from elastream_papers.harness.assumptions import assumption_table, values, variations
from elastream_papers.harness.report import by_verdict, curves, report
from elastream_papers.harness.sensitivity import sensitivity, turned

SEEDS = tuple(range(1, 25))
SWEEP_SEEDS, VARIED_SEEDS = SEEDS[:6], SEEDS[:3]
ENDS = (RATES[0], RATES[-1])
# Section V-B; the paper gives values as curves only
PAPER = {
    "Figure 4": "EA has the highest use of CPU and of bandwidth of the three at every rate; random varies most",
    "Figure 5": "EA has the lowest deviation of both, above all at high rates",
}


def run_elastic_allocator(options: ExperimentOptions) -> Findings:
    """Run all rates and the sweep of `busy`, with all seeds and the World Cup day unless `quick`.

    sensitivity: also a curve over every assumption, at the ends of the rates.
    """
    assumptions = AllocatorAssumptions()
    seeds = SEEDS[:1] if options.quick else SEEDS
    wanted = [
        AllocatorCase(p, rate, seed, assumptions, exact=p == JUDGED and seed == seeds[0])
        for rate in (RATES[::5] if options.quick else RATES)
        for p in POLICIES
        for seed in seeds
    ]
    wanted += [
        AllocatorCase(p, RATES[-1], seed, replace(assumptions, busy=busy, sent=busy), sweep=True)
        for busy in (SWEEP[::5] if options.quick else SWEEP)
        for p in (OTHERS[0], JUDGED)
        for seed in (seeds if options.quick else SWEEP_SEEDS)
    ]
    if not options.quick and WORLD_CUP.exists():
        wanted += [AllocatorCase(p, 0, 1, assumptions) for p in POLICIES]
    if options.sensitivity:
        wanted += [
            AllocatorCase(p, rate, seed, varied)
            for varied in variations(assumptions).values()
            for rate in ENDS
            for p in (*OTHERS, JUDGED)
            for seed in (seeds if options.quick else VARIED_SEEDS)
        ]
    runs, seconds = run_all(run_case, wanted, options, lambda case: f"{case.policy}, {case.rate or 'World Cup'}")
    return outcome(runs, seconds)


def outcome(runs: Sequence[AllocatorRun], seconds: float) -> Findings:
    """Return the findings; the bars apply to the default assumptions."""
    assumptions = AllocatorAssumptions()
    main = [run for run in runs if run.case.assumptions == assumptions and not run.case.sweep]
    sweep = [run for run in runs if run.case.sweep]
    checks = bars([*main, *sweep])
    tables = {str(rate): table for rate in RATES if (table := by_policy(main, rate))}
    day = by_policy(main, 0)
    base = bars([replace(run, gaps=()) for run in main if run.case.rate in ENDS and run.case.seed in VARIED_SEEDS])
    varied = {
        change: bars(mine)
        for change, other in variations(assumptions).items()
        if (mine := [run for run in runs if run.case.assumptions == other and not run.case.sweep])
    }
    exact = [run for run in main if run.gaps]
    fields = (
        (FIGURES[:2], "Use of all cores and of all links, simulated (compare Figure 4)"),
        (FIGURES[2:4], "Deviation over hosts, simulated (compare Figure 5)"),
        (FIGURES[4:], "Tuples/s that get through, of each query, simulated"),
    )
    of_day = (
        (FIGURES[:2], "Use, means over the day, simulated"),
        (FIGURES[2:4], "Deviation, means over the day, simulated"),
    )
    return report(
        "Elastic Allocator: tasks placed by what they need of cores and links (simulated)",
        "Elastic Allocator: an adaptive task scheduler for streaming query in the cloud (2014), section V, on "
        "the simulated plant: Top-K is placed beside Word Count and Join on ten hosts. Every figure is simulated; "
        "the paper shows Figures 4 and 5 as curves, and its text gives no values to stand beside ours. 'elastic "
        "allocator' is the published Algorithm 1, which the bars judge; 'with search' is our option.",
        {
            "rates": tables,
            "World Cup 1998, busiest day": day,
            "deviation over exact, published and with search": {str(run.case.rate): run.gaps for run in exact},
            "exact proven": {str(run.case.rate): run.proven for run in exact},
            "sweep of busy": swept(sweep),
            "sensitivity": turned(base, varied),
            "assumptions": values(assumptions),
            "refused": sum(run.refused for run in runs),
        },
        checks,
        {
            "": [
                *(figure_table(tables, names, caption) for names, caption in fields),
                Table(
                    "Deviation over the exact placement's, simulated",
                    ("tuples/s", "Algorithm 1", "with search", "exact"),
                    tuple(
                        (str(r.case.rate), *(f"{gap:.4f}" for gap in r.gaps), "proven" if r.proven else "best found")
                        for r in exact
                    ),
                ),
                *([sweep_table(swept(sweep))] if sweep else []),
                *(_plot(tables, name) for name in FIGURES[:4]),
            ],
            "The busiest day of the World Cup 1998, a minute played as a second": [
                *(figure_table({"up to 1200": day}, names, caption) for names, caption in of_day),
                _day_plot(main),
            ]
            if day
            else [],
            "What is assumed": [assumption_table(assumptions)],
            "What depends on it": sensitivity(base, varied),
        },
        seconds,
        paper=PAPER,
        verdict=f"{by_verdict(checks, missed='Missed', undecided='Undecided')} {verdict(tables)}".strip(),
        runs=len(runs),
    )


def verdict(tables: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the rates of higher utilisation, and the reason for the others."""
    parts = []
    for name in ("CPU use", "link use"):
        more = [rate for rate, t in tables.items() if t[JUDGED][name] > max(t[p][name] for p in OTHERS) + SAME]
        parts.append(f"{name} is higher at {', '.join(more) + ' tuples/s' if more else 'no rate'}")
    return (
        f"{'; '.join(parts)} than with even and random. Elsewhere it is the same by arithmetic: as long as no host and no "
        "link is full every tuple gets through, and the same tuples need the same cores wherever tasks lie. Links are used "
        "a little less where tasks that talk came to lie on one host."
    )


def swept(runs: Sequence[AllocatorRun]) -> dict[str, dict[str, float]]:
    """Return by `busy` the mean CPU use, and the runs with a full host."""
    found = {}
    for busy in sorted({run.case.assumptions.busy for run in runs}):
        row = {}
        for policy in (OTHERS[0], JUDGED):
            mine = [run for run in runs if run.case.assumptions.busy == busy and run.case.policy == policy]
            row[f"CPU use, {policy}"] = fmean(run.figures["CPU use"] for run in mine)
            row[f"runs with a full host, {policy}"] = float(sum(run.fullest >= FULL for run in mine))
        found[f"{busy:g}"] = row
    return found


def sweep_table(sweep: Mapping[str, Mapping[str, float]]) -> Table:
    names = tuple(next(iter(sweep.values())))
    rows = tuple((busy, *(_text(name, row[name]) for name in names)) for busy, row in sweep.items())
    return Table(f"CPU use at {RATES[-1]} tuples/s by what the queries ask for (busy), simulated", ("busy", *names), rows)


def figure_table(rates: Mapping[str, Mapping[str, Mapping[str, float]]], names: Sequence[str], caption: str) -> Table:
    """Return a table with a row per rate, and a column per figure and policy."""
    rows = tuple(
        (rate, *(_text(name, table[policy][name]) for name in names for policy in POLICIES))
        for rate, table in rates.items()
    )
    return Table(caption, ("tuples/s", *(f"{name}, {policy}" for name in names for policy in POLICIES)), rows)


def _plot(tables: Mapping[str, Mapping[str, Mapping[str, float]]], name: str) -> Plot:
    points = {policy: [(float(rate), table[policy][name]) for rate, table in tables.items()] for policy in POLICIES}
    return curves(f"{name} (simulated, compare Figure {5 if 'deviation' in name else 4})", "tuples/s", name, points)


def _day_plot(runs: Sequence[AllocatorRun]) -> Plot:
    mine = {run.case.policy: run for run in runs if run.case.rate == 0}
    offered = next(iter(mine.values())).series
    load = load_curve("offered", [r[0] for r in offered], [r[1] for r in offered])
    lines = [
        Curve(policy, [r[0] for r in run.series], [r[4] for r in run.series], colour=number)
        for number, (policy, run) in enumerate(mine.items())
    ]
    return Plot("CPU deviation over the day (simulated)", "minutes", "CPU deviation", (load, *lines), "tuples/s")


def _text(name: str, value: float) -> str:
    if "full host" in name:
        return f"{value:.0f}"
    return percent(value) if "use" in name else amount(value)
