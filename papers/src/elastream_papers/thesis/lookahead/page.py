"""Page of the look-ahead experiment: Figures 5.3 to 5.5 and real forecasters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
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
from elastream_papers.thesis.lookahead.bars import PLASTICC, LookaheadResults, bars
from elastream_papers.thesis.lookahead.experiment import (
    BESIDE,
    BIASES,
    CE,
    CLOUDS,
    ERRORS,
    FIGURE_5_5,
    FORECASTERS,
    HORIZONS,
    INTERVAL,
    POLICIES,
    REACTIVE,
    SEEDS,
    Foresight,
    LookaheadAssumptions,
    LookaheadCase,
    LookaheadRun,
    run_case,
)

# pp. 100, 113 and 115; no other numbers in the text
THESIS = {
    "profit of PLAStiCC, perfect oracle, from 10 to 60 minutes": [0.6, 0.7],
    "profit of PLAStiCC above the reactive, up to": 0.2,
    "relative throughput kept by all": 0.8,
}
QUICK_HORIZONS, QUICK_ERRORS, QUICK_BIASES, QUICK_SEEDS = (20, 60), (0.0, 0.20), (0.0, -0.05), (1,)
PREDICTING = ("wpa", "wpo", "wpp")
UNAFFECTED = ("caf", CE)  # beside Fig. 5.5: no forecast, no error
CLOUDED = (20, 60)  # minutes ahead under other clouds


def run_lookahead(options: ExperimentOptions) -> Findings:
    """Run every policy by horizon, PLAStiCC by error, and all by error and bias at 20 minutes.

    sensitivity: also the quick form with drawn assumptions.
    """
    assumptions = LookaheadAssumptions()
    draws = draws_of(assumptions, options)
    clouds = {name: replace(assumptions, cloud=replace(assumptions.cloud, **changed)) for name, changed in CLOUDS.items()}
    cases = [*_cases(assumptions, options.quick, True), *(case for each in draws for case in _cases(each, True, False))]
    cases += [case for each in clouds.values() for case in _cloud_cases(each, options.quick)]
    runs, seconds = run_all(run_case, cases, options, lambda c: f"{c.policy}, {c.horizon} min")
    by_given = {
        each: LookaheadResults([run for run in runs if run.case.assumptions == each])
        for each in (assumptions, *clouds.values(), *draws)
    }
    others = {name: by_given[each] for name, each in clouds.items()}
    return outcome(by_given[assumptions], [by_given[each] for each in draws], seconds, others)


def _cloud_cases(assumptions: LookaheadAssumptions, quick: bool) -> list[LookaheadCase]:
    wanted = [*((PLASTICC, horizon) for horizon in CLOUDED), *((policy, FIGURE_5_5) for policy in ("caf", CE))]
    return [
        LookaheadCase(*each, seed, assumptions=assumptions) for each in wanted for seed in (QUICK_SEEDS if quick else SEEDS)
    ]


def _cases(assumptions: LookaheadAssumptions, quick: bool, real: bool) -> list[LookaheadCase]:
    horizons, errors = (QUICK_HORIZONS, QUICK_ERRORS) if quick else (HORIZONS, ERRORS)
    biases, seeds = (QUICK_BIASES, QUICK_SEEDS) if quick else (BIASES, SEEDS)
    wanted: dict[tuple[str, int, Foresight], None] = {(policy, FIGURE_5_5, Foresight()): None for policy in REACTIVE}
    for horizon in reversed(horizons):
        wanted |= {(policy, horizon, Foresight()): None for policy in (PLASTICC, *PREDICTING)}
        wanted |= {(PLASTICC, horizon, Foresight(error=error)): None for error in errors}
    for error in errors:
        for bias in biases:
            wanted |= {(p, FIGURE_5_5, Foresight(error=error, bias=bias)): None for p in (PLASTICC, *PREDICTING)}
    if real:
        wanted |= {(PLASTICC, FIGURE_5_5, Foresight(by)): None for by in FORECASTERS}
    if not quick:
        wanted |= {(INTERVAL, horizon, Foresight()): None for horizon in horizons}
    return [LookaheadCase(*each[:2], seed, each[2], assumptions) for each in wanted for seed in seeds]


def outcome(
    main: LookaheadResults,
    draws: Sequence[LookaheadResults],
    seconds: float,
    clouds: Mapping[str, LookaheadResults] = MappingProxyType({}),
) -> Findings:
    """Return the findings. draws: under drawn assumptions; clouds: under other clouds, by name."""
    checks = bars(main)
    shares = shares_of(checks, [bars(each) for each in draws])
    assumptions = main.runs[0].case.assumptions
    figures: dict[str, Any] = {
        "horizons": {p: {str(h): _summary(main.of(p, h)) for h in main.horizons} for p in POLICIES},
        "beside": {p: {str(h): _summary(main.of(p, h)) for h in main.horizons} for p in (*BESIDE, INTERVAL)},
        "clouds": {
            cloud: {name: _summary(each.of(policy, horizon)) for name, policy, horizon in _clouded()}
            for cloud, each in ({"as assumed": main} | dict(clouds)).items()
        },
        "errors": {f"{e:g}": {str(h): _summary(main.of(PLASTICC, h, e)) for h in main.horizons} for e in main.errors},
        "biases": {
            p: {f"{b:+g}": {f"{e:g}": _summary(main.of(p, FIGURE_5_5, e, b)) for e in main.errors} for b in main.biases}
            for p in (PLASTICC, *PREDICTING)
        },
        "forecasters": {by: _summary(main.of(PLASTICC, FIGURE_5_5, by=by)) for by in FORECASTERS},
        "share of draws": shares,
        "draws": {"number": len(draws), "within": AROUND},
        "assumptions": values(assumptions.flow) | values(assumptions.cloud),
    }
    return report(
        "Value against cost: look-ahead scheduling (simulated)",
        "Adaptive and resilient stream processing on cloud infrastructure (Kumbhare, 2016), chapter 5, "
        "simulated: the synthetic dataflow of Figure 5.2 for 12 hours on m1 hosts billed by the hour, planned every 5 "
        "minutes. Every figure that is not marked as the thesis's is simulated. Bars and chi take the throughput with what "
        "waited (Eq. 4.4). An oracle's error is the mean size of its errors. "
        f"Runs: {len({r.case.seed for r in main.runs})} a case.",
        figures,
        checks,
        {
            "Horizons (Figure 5.3)": [horizon_table(main), *_horizon_plots(main)],
            "Errors (Figures 5.4 and 5.5)": [error_table(main), *_error_plots(main)],
            "Real forecasters": [forecaster_table(main)],
            "Other clouds": [cloud_table({"as assumed": main} | dict(clouds))],
            "What is assumed": [assumption_table(assumptions.flow), assumption_table(assumptions.cloud)],
            "What depends on it": share_table(shares, len(draws)),
        },
        seconds,
        paper=THESIS,
        verdict=verdict(main, checks),
        runs=len(main.runs),
    )


def _summary(runs: Sequence[LookaheadRun]) -> dict[str, Any]:
    if not runs:
        return {}
    names = ("throughput", "waited", "worst", "value", "cost", "profit", "unstable", "hosts", "retracted", "reversed",
        "refused", "seconds", "most")  # fmt: skip
    found = {name: rounded(float(np.mean([getattr(run, name) for run in runs]))) for name in names}
    return found | {"profit deviation": rounded(float(np.std([run.profit for run in runs]))), "runs": len(runs)}


def verdict(results: LookaheadResults, checks: Sequence[Check]) -> str:
    first, last = results.horizons[0], results.horizons[-1]
    own = [results.mean("profit", PLASTICC, h) for h in (first, last)]
    caf, own_reactive = (results.mean("profit", policy, last) for policy in ("caf", CE))
    most = results.mean("most", PLASTICC, last)
    return (
        f"PLAStiCC's profit under the perfect oracle is {own[0]:.3f} at {first} minutes and {own[1]:.3f} at {last}, CAF's "
        f"{caf:.3f}, that of ce, which sees no forecast, {own_reactive:.3f}, and about the most is {most:.3f}; the thesis "
        "prints 0.6 to 0.7 and a gain of up to 20 %. " + (by_verdict(checks, missed="Missed") or "All bars hold.")
    )


def _row(name: str, runs: Sequence[LookaheadRun]) -> tuple[str, ...]:
    def mean(figure: str) -> float:
        return float(np.mean([getattr(run, figure) for run in runs]))

    profits = [run.profit for run in runs]
    return (
        name,
        f"{mean('throughput'):.3f}",
        f"{min(run.worst for run in runs):.3f}",
        f"{mean('waited'):.3f}",
        f"{mean('value'):.3f}",
        f"{mean('cost'):,.2f}",
        f"{np.mean(profits):.3f} ({np.std(profits):.3f})",
        f"{mean('unstable'):.0f}",
        f"{mean('retracted'):.0f} / {mean('reversed'):.0f}",
    )


HEADER = ("", "throughput", "least over an interval", "with what waited", "value", "cost, $", "profit (sigma)",
    "chi of 144", "planned changes retracted / enacted ones reversed")  # fmt: skip


def horizon_table(results: LookaheadResults) -> Table:
    """Return Fig. 5.3."""
    rows = [
        _row(policy.upper() if policy in REACTIVE else f"{policy.upper()}, {horizon} min", results.of(policy, horizon))
        for policy in (*POLICIES, *BESIDE, INTERVAL)
        for horizon in (results.horizons[:1] if policy in REACTIVE else results.horizons)
        if results.of(policy, horizon)
    ]
    most = float(np.mean([run.most for run in results.of(PLASTICC, results.horizons[0])]))
    rows.append(("about the most: hosts of the mean speed, paid by the second", *["-"] * 5, f"{most:.3f}", *["-"] * 2))
    return Table("Perfect oracle, means over the runs (compare Fig. 5.3: all keep 0.8)", HEADER, tuple(rows))


def error_table(results: LookaheadResults) -> Table:
    """Return the table of policies by error of their forecasts (Fig. 5.5)."""
    rows = [
        _row(f"{policy.upper()}, error {error:.0%}, bias {bias:+.0%}", results.of(policy, FIGURE_5_5, error, bias))
        for bias in results.biases
        for error in results.errors
        for policy in (PLASTICC, *PREDICTING)
    ]
    rows += [_row(policy.upper(), results.of(policy, FIGURE_5_5)) for policy in UNAFFECTED]
    return Table(f"Oracles with error, {FIGURE_5_5} minutes ahead (compare Fig. 5.5)", HEADER, tuple(rows))


def forecaster_table(results: LookaheadResults) -> Table:
    """Return real forecasters beside the oracle and CAF; the thesis has none."""
    rows = [_row("perfect oracle", results.of(PLASTICC, FIGURE_5_5)), _row("CAF", results.of("caf", FIGURE_5_5))]
    rows += [_row(by, runs) for by in FORECASTERS if (runs := results.of(PLASTICC, FIGURE_5_5, by=by))]
    return Table(f"PLAStiCC, {FIGURE_5_5} minutes ahead, by who looks ahead (not in the thesis)", HEADER, tuple(rows))


def _clouded() -> list[tuple[str, str, int]]:
    """Return (name, policy, horizon) of the runs on every cloud."""
    return [
        *((f"plasticc, {h} min", PLASTICC, h) for h in CLOUDED),
        *((policy, policy, FIGURE_5_5) for policy in UNAFFECTED),
    ]


def cloud_table(results: Mapping[str, LookaheadResults]) -> Table:
    """Return profits by cloud, which decides the value of a forecast; the thesis has no such figure."""
    rows = [(name, *(f"{each.mean('profit', p, h):.3f}" for _, p, h in _clouded())) for name, each in results.items()]
    return Table("Profit by cloud, perfect oracle", ("", *(name for name, _, _ in _clouded())), tuple(rows))


def _horizon_plots(results: LookaheadResults) -> list[Plot]:
    return [
        curves(
            f"{what} by horizon, perfect oracle (simulated, compare Fig. 5.3({part}))",
            "minutes ahead",
            y,
            {p.upper(): [(h, results.mean(figure, p, h)) for h in results.horizons] for p in (*POLICIES, CE)},
        )
        for part, figure, what, y in (
            ("a", "waited", "Relative throughput (Eq. 4.4)", "part of what came in and waited"),
            ("b", "profit", "Profit", "profit"),
            ("c", "unstable", "Stability", "instants off the target"),
        )
    ]


def _error_plots(results: LookaheadResults) -> list[Plot]:
    by_error = {
        f"error {e:.0%}": [(h, results.mean("profit", PLASTICC, h, e)) for h in results.horizons] for e in results.errors
    }
    caption = "PLAStiCC's profit by horizon and error (simulated, compare Fig. 5.4)"
    plots = [curves(caption, "minutes ahead", "profit", by_error)]
    for part, bias in zip("abc", results.biases, strict=False):
        caption = f"Profit by error, bias {bias:+.0%}, {FIGURE_5_5} minutes ahead (simulated, compare Fig. 5.5({part}))"
        points = {
            p.upper(): [(100 * e, results.mean("profit", p, FIGURE_5_5, e, bias)) for e in results.errors]
            for p in (PLASTICC, *PREDICTING, *UNAFFECTED)
        }
        plots.append(curves(caption, "mean error, %", "profit", points))
    return plots
