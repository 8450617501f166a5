"""Page of the reactive experiment: Table 4.2 and Figures 4.6 and 4.7 beside the thesis's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from elastream.evaluation.cases import run_all
from elastream.evaluation.checks import shares_of
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table
from elastream.report.plots import Plot
from elastream_papers.harness.assumptions import AROUND, assumption_table, draws_of, share_table, values
from elastream_papers.harness.report import by_verdict, curves, report, rounded
from elastream_papers.thesis.reactive.bars import ADAPTED, NAMES, TABLE, ReactiveResults, bars
from elastream_papers.thesis.reactive.experiment import (
    ADAPTING,
    ALGORITHMS,
    BOTH,
    COLUMNS,
    GREEDY,
    IN_TURNS,
    NONE,
    OWN,
    RATES,
    SEEDS,
    STAGES,
    TABLED,
    PlanCase,
    Planned,
    ReactiveAssumptions,
    ReactiveCase,
    ReactiveRun,
    plan_case,
    run_case,
)

PLANNED = (*RATES, 800, 4000, 8000)  # mean messages/s of plans (Fig. 4.7); 800 for the growth of planning time
PROOF, SHORT = 600.0, 20.0  # seconds of the exact model at TABLED, and at other rates and in quick forms
GENETIC_UP_TO = 2000  # messages/s of plans; beyond, the search takes its whole time box
ADAPTED_UP_TO = (
    100  # messages/s of GA's runs: Figs. 4.6(b) and (c) have none from 500 on, where it is "prohibitive" (p. 93)
)
UNITS = (0.1, 0.2, 0.35)  # units of cost beside the fitted one, at TABLED
QUICK_RATES, QUICK_SEEDS = (10, 50, 500), (1,)
QUICK_PLANNED = (10, 50, 100, 500, 800, 2000, 8000)
ALL_OPTIONS = (True, False)


def run_reactive(options: ExperimentOptions) -> Findings:
    """Plan for every rate, then run the plans, static and adapted.

    sensitivity: also the quick form with drawn assumptions.
    """
    assumptions = ReactiveAssumptions()
    draws = draws_of(assumptions, options)
    units = [] if options.quick else [replace(assumptions, road=replace(assumptions.road, unit=unit)) for unit in UNITS]
    sets = [(assumptions, options.quick), *((each, True) for each in draws)]
    wanted = [case for each, quick in sets for case in _plans(each, quick)]
    wanted += [case for each in units for case in _plans(each, True) if case.rate == TABLED and case.alternates]
    plans, first = run_all(plan_case, wanted, options, lambda c: f"plan {c.algorithm}, {c.rate}/s")
    todo = [
        case
        for each, quick in [*sets, *((unit, True) for unit in units)]
        for case in _runs(each, quick, [p for p in plans if p.case.assumptions == each])
    ]
    runs, second = run_all(run_case, todo, options, lambda c: f"{c.algorithm}, {c.rate}/s")

    def results(of: ReactiveAssumptions) -> ReactiveResults:
        return ReactiveResults(
            [p for p in plans if p.case.assumptions == of], [r for r in runs if r.case.assumptions == of]
        )

    return outcome(
        results(assumptions), [results(each) for each in draws], first + second, [results(each) for each in units]
    )


def _plans(assumptions: ReactiveAssumptions, quick: bool) -> list[PlanCase]:
    """Return the plans to make, the longest first for balanced workers."""
    rates = QUICK_PLANNED if quick else PLANNED
    run = QUICK_RATES if quick else RATES
    found = [
        PlanCase("exact", rate, PROOF if rate == TABLED and not quick else SHORT, True, assumptions)
        for rate in sorted(run, key=lambda rate: rate != TABLED)
    ]
    found += [
        PlanCase("genetic", rate, assumptions=assumptions)
        for rate in reversed(run if quick else rates)
        if rate <= GENETIC_UP_TO
    ]
    for algorithm in ("ce", "sh"):
        found += [PlanCase(algorithm, rate, assumptions=assumptions) for rate in reversed(rates)]
        found += [PlanCase(algorithm, rate, alternates=False, assumptions=assumptions) for rate in run]
    return found


def _runs(assumptions: ReactiveAssumptions, quick: bool, plans: Sequence[Planned]) -> list[ReactiveCase]:
    rates, seeds = (QUICK_RATES, QUICK_SEEDS) if quick else (RATES, SEEDS)
    by = {(p.case.algorithm, p.case.rate, p.case.alternates): p.plan for p in plans}
    found = []
    for rate in sorted(rates, reverse=True):
        for seed in seeds:
            found += [
                ReactiveCase(algorithm, rate, BOTH, True, seed, by[plan, rate, alternates], alternates, assumptions)
                for alternates in ALL_OPTIONS
                for algorithm in (*GREEDY, *(["genetic"] if alternates and rate <= ADAPTED_UP_TO else []))
                if ((plan := "ce" if algorithm == OWN else algorithm), rate, alternates) in by
            ]
            if rate == TABLED:
                found += [
                    ReactiveCase(algorithm, rate, BOTH, True, seed, by[algorithm, rate, True], True, assumptions, stages)
                    for algorithm in ("ce", "sh")
                    for stages in STAGES
                    if stages != IN_TURNS
                ]
            varied = COLUMNS.values() if rate == TABLED else () if quick or seed != seeds[0] else (BOTH,)
            found += [
                ReactiveCase(algorithm, rate, varies, False, seed, by[algorithm, rate, True], True, assumptions)
                for algorithm in ALGORITHMS
                for varies in varied
                if (algorithm, rate, True) in by and (varies != NONE or seed == seeds[0])
            ]
    return found


def outcome(
    main: ReactiveResults, draws: Sequence[ReactiveResults], seconds: float, units: Sequence[ReactiveResults] = ()
) -> Findings:
    """Return the findings. draws: under drawn assumptions; units: under other units of cost."""
    checks = bars(main)
    shares = shares_of(checks, [bars(each) for each in draws])
    assumptions = main.planned[0].case.assumptions
    figures: dict[str, Any] = {
        "static": {
            algorithm: {
                "profit": rounded(main.mean("profit", algorithm, TABLED, NONE, adapted=False)),
                **{
                    name: {
                        "throughput": rounded(main.mean("throughput", algorithm, TABLED, column, adapted=False)),
                        "with what waited": rounded(main.mean("waited", algorithm, TABLED, column, adapted=False)),
                    }
                    for name, column in COLUMNS.items()
                },
            }
            for algorithm in ALGORITHMS
        },
        "adapted": {
            policy: {str(rate): _summary(main.of(policy, rate)) for rate in main.rates if main.of(policy, rate)}
            for policy in (*ADAPTING, OWN)
        },
        "best alternates only": {
            policy: {str(rate): _summary(main.of(policy, rate, alternates=False)) for rate in main.rates}
            for policy in GREEDY
        },
        "stages (m, n)": {
            f"{m}, {n}": {p: _summary(runs) for p in ("ce", "sh") if (runs := main.of(p, TABLED, stages=(m, n)))}
            for m, n in STAGES
        },
        "unit of cost": {f"{each.planned[0].case.assumptions.road.unit:g}": _unit_json(each) for each in (main, *units)},
        "plans": {algorithm: {str(p.case.rate): _plan_json(p) for p in main.plans(algorithm)} for algorithm in ALGORITHMS},
        "share of draws": shares,
        "draws": {"number": len(draws), "within": AROUND},
        "assumptions": values(assumptions.road) | values(assumptions.cloud),
    }
    return report(
        "Value against cost: reactive scheduling (simulated)",
        "Adaptive and resilient stream processing on cloud infrastructure (Kumbhare, 2016), chapter 4, "
        "simulated: Linear Road for 12 hours on m1 hosts billed by the hour, planned every five minutes. What is "
        "not marked as the thesis's is simulated. Throughput is that of Eq. 4.4, which counts what waits; beside it stands "
        "that of what came in an instant. CE is Algorithm 4 as printed; 'CE, ours' is the product's policy ce. Value and "
        "profit count the two dynamic operators: over all eight no profit passes 0.225, and the thesis prints 0.67. "
        "'About the most' is what hosts of the mean speed would leave that are paid by the second and process all that "
        f"comes. Runs: {len({run.case.seed for run in main.runs})} a case.",
        figures,
        checks,
        {
            "Static plans (Table 4.2)": [static_table(main), _static_plot(main)],
            "Adapted (Figure 4.6)": [adapted_table(main), *_adapted_plots(main)],
            "Planning (Figure 4.7)": [planning_table(main), *_planning_plots(main)],
            "What is assumed": [assumption_table(assumptions.road), assumption_table(assumptions.cloud)],
            "What depends on it": share_table(shares, len(draws)),
        },
        seconds,
        paper={
            "static": {algorithm: dict(zip(("profit", *COLUMNS), row, strict=True)) for algorithm, row in TABLE.items()},
            "adapted": {policy: {str(TABLED): profit} for policy, profit in ADAPTED.items()},
        },
        verdict=verdict(main, checks),
        runs=len(main.runs),
    )


def _summary(runs: Sequence[ReactiveRun]) -> dict[str, Any]:
    names = ("throughput", "waited", "value", "cost", "profit", "profit_all", "unstable", "hosts", "refused", "seconds",
        "most")  # fmt: skip
    found = {name: rounded(float(np.mean([getattr(run, name) for run in runs]))) for name in names}
    return found | {"profit deviation": rounded(float(np.std([run.profit for run in runs]))), "runs": len(runs)}


def _unit_json(results: ReactiveResults) -> dict[str, float | None]:
    """Return the profits at TABLED messages/s, which depend on the unit of cost."""
    static = {f"static {NAMES[a]}": results.mean("profit", a, TABLED, NONE, adapted=False) for a in ALGORITHMS}
    adapted = {f"adapted {NAMES[a]}": results.mean("profit", a, TABLED) for a in (*ADAPTING, OWN)}
    return {name: rounded(value) for name, value in (static | adapted).items()}


def _plan_json(plan: Planned) -> dict[str, Any]:
    names = ("profit", "throughput", "value", "cost", "cores", "power", "seconds", "bound")
    return {name: rounded(getattr(plan, name)) for name in names}


def verdict(results: ReactiveResults, checks: Sequence[Check]) -> str:
    best = results.plan("exact", TABLED)
    text = ""
    if best is not None:
        proven = "proven optimal" if best.bound - best.profit < 1e-5 else f"at most {best.bound:.4f} is possible"
        text = f"The exact plan at {TABLED}/s has a profit of {best.profit:.4f} ({proven}); the thesis prints 0.67. "
    return text + (by_verdict(checks, missed="Missed") or "All bars hold.")


def static_table(results: ReactiveResults) -> Table:
    """Return Table 4.2, ours above."""
    rows: list[tuple[str, ...]] = []
    for algorithm in ALGORITHMS:
        fresh = [results.mean("throughput", algorithm, TABLED, column, adapted=False) for column in COLUMNS.values()]
        mean = [results.mean("waited", algorithm, TABLED, column, adapted=False) for column in COLUMNS.values()]
        profit = results.mean("profit", algorithm, TABLED, NONE, adapted=False)
        rows.append((f"{NAMES[algorithm]} (simulated)", f"{profit:.3f}", *(f"{each:.2f}" for each in mean)))
        rows.append(("   without what waits", "", *(f"{each:.2f}" for each in fresh)))
        rows.append(("   thesis, Table 4.2", *(f"{each:.2f}" for each in TABLE[algorithm])))
    return Table(f"Static plans at {TABLED} messages/s: throughput by what varies", ("", "profit", *COLUMNS), tuple(rows))


def adapted_table(results: ReactiveResults) -> Table:
    """Return adapted runs by rate, beside the best static plan and the upper profit."""
    rows: list[tuple[str, ...]] = []
    for rate in results.rates:
        for policy in (*ADAPTING, OWN):
            if not (runs := results.of(policy, rate)):
                continue
            best = results.plan("exact", rate)
            profits = [run.profit for run in runs]
            printed = ADAPTED.get(policy) if rate == TABLED else None
            rows.append(
                (
                    f"{NAMES[policy]}, {rate}/s",
                    f"{np.mean([run.waited for run in runs]):.3f}",
                    f"{np.mean([run.throughput for run in runs]):.3f}",
                    f"{np.mean([run.value for run in runs]):.3f}",
                    f"{np.mean([run.cost for run in runs]):,.2f}",
                    f"{np.mean(profits):.3f} ({np.std(profits):.3f})",
                    "-" if printed is None else f"{printed:.2f}",
                    "-" if best is None else f"{best.profit:.3f} (<= {best.bound:.3f})",
                    f"{np.mean([run.most for run in runs]):.3f}",
                    f"{np.mean([run.unstable for run in runs]):.0f}",
                )
            )
    header = ("", "throughput, Eq. 4.4", "without what waits", "value", "cost, $", "profit (sigma)", "profit, thesis",
        "exact plan for the mean rate (bound)", "about the most", "chi of 144")  # fmt: skip
    return Table("Adapted, hosts and rates vary, means over the runs", header, tuple(rows))


def planning_table(results: ReactiveResults) -> Table:
    """Return planning times and numbers of cores."""
    rows = tuple(
        (f"{NAMES[algorithm]}, {p.case.rate}/s", f"{p.seconds:.3f}", f"{p.cores:.0f}", f"{p.power:.0f}", f"{p.profit:.4f}")
        for algorithm in ALGORITHMS
        for p in results.plans(algorithm)
    )
    return Table(
        "First plans (thesis, Fig. 4.7(a): BR above 10,000 s at 50/s, GA above 1,000 s and CE, SH about 2.5 s at 8,000/s)",
        ("", "CPU, s", "cores", "cores of speed 1", "profit"),
        rows,
    )


def _static_plot(results: ReactiveResults) -> Plot:
    points = {}
    for algorithm in ALGORITHMS:
        means = [(rate, results.mean("waited", algorithm, rate, BOTH, adapted=False)) for rate in results.rates]
        if known := [(rate, mean) for rate, mean in means if mean == mean]:
            points[NAMES[algorithm]] = known
    caption = "Static plans, hosts and rates vary: throughput by rate (simulated, compare Fig. 4.6(a))"
    return curves(caption, "messages/s", "throughput", points)


def _adapted_plots(results: ReactiveResults) -> list[Plot]:
    plots = []
    for figure, what, part in (("waited", "throughput", "b"), ("profit", "profit", "c")):
        points = {
            NAMES[p]: [(rate, results.mean(figure, p, rate)) for rate in results.rates if results.of(p, rate)]
            for p in (*ADAPTING, OWN)
        }
        caption = f"Adapted: {what} by rate (simulated, compare Fig. 4.6({part}))"
        plots.append(curves(caption, "messages/s", what, points))
    costs = {
        f"{NAMES[p]}, {'with' if alternates else 'without'} alternates": [
            (rate, results.mean("cost", p, rate, alternates=alternates)) for rate in results.rates
        ]
        for p in GREEDY
        for alternates in ALL_OPTIONS
    }
    caption = "Cost of 12 hours by rate (simulated, compare Fig. 4.7(c))"
    return [*plots, curves(caption, "messages/s", "$", costs, ("solid", "dot") * 3)]


def _planning_plots(results: ReactiveResults) -> list[Plot]:
    return [
        curves(
            caption,
            "messages/s",
            y,
            {NAMES[a]: [(p.case.rate, getattr(p, figure)) for p in results.plans(a)] for a in ALGORITHMS},
        )
        for figure, caption, y in (
            ("seconds", "CPU of a first plan (compare Fig. 4.7(a))", "s"),
            ("cores", "Cores of a first plan (compare Fig. 4.7(b))", "cores"),
        )
    ]
