"""Page of the dynamic dataflow experiment on synthetic readings, with Fig. 3.7."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elastream.core.frames import Floats
from elastream.core.wording import percent
from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Prose, Table
from elastream.report.plots import Curve, Plot
from elastream_papers.harness.assumptions import AROUND, assumption_table, drawn, labelled, share_table, values
from elastream_papers.harness.report import by_verdict, report
from elastream_papers.thesis.dynamic_dataflow.consistency import Consequence, consequences, figures_of, table_of
from elastream_papers.thesis.dynamic_dataflow.experiment import (
    NETWORK,
    ONLINE,
    ORACLE,
    PAPER,
    PICKED,
    RANDOM,
    REGIME,
    SELECTOR,
    DataSet,
    DataSetResult,
    bars,
    bars_held,
    run_case,
)
from elastream_papers.thesis.dynamic_dataflow.methods import METHODS
from elastream_papers.thesis.dynamic_dataflow.readings import CUSTOMERS, Generator

SEEDS = 5  # least number of data sets that a sign test decides on
DRAWS, FEWER_DRAWS = 20, 4  # data sets with drawn parameters: 20 give a share to within 0.22, twice its standard error
FEWER_CUSTOMERS = 6
POINTS = 100  # points of a curve of Fig. 3.7
WAYS = {
    NETWORK: "network, asked for every hour",
    SELECTOR: "selector: network, asked when what runs became bad",
    ONLINE: "tree that learns online (river)",
    REGIME: "whoever knows the regime of the past hour",
    RANDOM: "random choice",
    ORACLE: "oracle",
}


def run_dynamic_dataflow(options: ExperimentOptions) -> Findings:
    """Run SEEDS data sets of the assumed parameters, and DRAWS with drawn ones (within `AROUND`).

    sensitivity: also each parameter halved and doubled.
    """
    generator = Generator()
    customers = FEWER_CUSTOMERS if options.quick else CUSTOMERS
    cases = [DataSet(generator, seed, customers) for seed in range(1, SEEDS + 1)]
    cases += [
        DataSet(drawn(generator, seed), seed, customers, "drawn")
        for seed in range(1, (FEWER_DRAWS if options.quick else DRAWS) + 1)
    ]
    if options.sensitivity:
        cases += [DataSet(varied, 1, customers, name) for name, varied in labelled(generator).items()]
    results, seconds = run_all(run_case, cases, options, lambda case: f"data {case.name}")
    return outcome(results, consequences(options.quick), seconds)


def outcome(results: Sequence[DataSetResult], switched: Sequence[Consequence], seconds: float) -> Findings:
    """Return the findings; bars apply to the assumed parameters. switched: by mode of consistency."""
    main = [each for each in results if each.case.name == "as assumed"]
    draws = [each for each in results if each.case.name == "drawn"]
    others = {each.case.name: bars([each]) for each in results if each.case.name not in ("as assumed", "drawn")}
    checks = bars(main)
    shares = shares_of(checks, draws)
    figures: dict[str, Any] = {
        "methods, mean MAPE, %": _means([each.by_method for each in main]),
        "picks": {way: _means([each.by_pick[way] for each in main]) for way in PICKED},
        "best method picked, by fold": [_means_of(each) for each in zip(*(r.accuracies for r in main), strict=True)],
        "asked": float(np.mean([fold.asked for each in main for fold in each.folds])),
        "best in": _means([fold.shares for each in main for fold in each.folds]),
        "share of draws": shares,
        "draws": {"number": len(draws), "within": AROUND},
        "sensitivity": {name: {check.name: check.value for check in found} for name, found in others.items()},
        "consistency": figures_of(switched),
        "assumptions": values(Generator()),
        "data": {"kind": "synthetic", "sets": len(main), "customers": main[0].case.customers},
    }
    return report(
        "Dynamic dataflows: forecasts that switch to the method that will be best (synthetic data)",
        "Kumbhare, Adaptive and resilient stream processing on cloud infrastructure, section 3.6: forecasts of electricity "
        "use an hour ahead, the method picked for each customer and hour from the standard deviations of the past hour. "
        "The thesis's readings are not public: every figure that is not marked as the thesis's is of synthetic data. Each "
        "of three weeks is judged after training on the three weeks before it.",
        figures,
        checks,
        {
            "": [pick_table(figures), method_table(figures), fold_table(main)],
            "Errors": [cdf_plot(main[0])],
            "Other data": [Prose(OTHER_DATA), *share_table(shares, len(draws))],
            "Switching": [Prose(SWITCHING), table_of(switched)],
            "What is assumed": [*_variation_table(others), assumption_table(Generator())],
        },
        seconds,
        paper={
            "best method picked": [PAPER["lowest fold"], PAPER["highest fold"]],
            "deviation": PAPER["deviation from the best"],
        },
        verdict=verdict(figures, checks),
        plant="synthetic",
        data="synthetic",
        runs=len(results),
    )


OTHER_DATA = (
    "The parameters of the data were fixed before any result was computed on them. Here all of them are drawn anew, "
    "independently, for each data set."
)
SWITCHING = (
    "The same plans of switches under each way to update a running dataflow: how long until nothing works under an older "
    "composition any more, and how many records met the elements that a plan switches before and after it."
)


def shares_of(checks: Sequence[Check], draws: Sequence[DataSetResult]) -> dict[str, float]:
    """Return the share of drawn data sets in which each bar holds."""
    found = np.array([bars_held(each) for each in draws], dtype=float)
    return {check.name: round(float(found[:, number].mean()), 4) for number, check in enumerate(checks)} if draws else {}


def verdict(figures: Mapping[str, Any], checks: Sequence[Check]) -> str:
    """Return the conclusion, with the oracle's result."""
    picks = figures["picks"]
    single = min(figures["methods, mean MAPE, %"].values())
    text = (
        f"Synthetic data. The network picks the best method of {percent(picks[NETWORK]['weekly'])} of the customers and "
        f"weeks; by the same count an oracle of every hour picks {percent(picks[ORACLE]['weekly'])}, the ceiling. Of the "
        f"hours it is {percent(picks[NETWORK]['accuracy'])}, and {percent(picks[REGIME]['accuracy'])} for whoever knew how "
        f"the customer worked in the past hour: the winner among similar methods is noise. What ran came to a mean MAPE of "
        f"{picks[SELECTOR]['mape']:.2f} %, the best single method to {single:.2f} %, the oracle to "
        f"{picks[ORACLE]['mape']:.2f} %; the network was asked in {percent(figures['asked'])} of the hours."
    )
    return f"{text} {by_verdict(checks, missed='Missed')}".rstrip()


def method_table(figures: Mapping[str, Any]) -> Table:
    rows = tuple(
        (name, f"{mape:.2f}", percent(figures["best in"][name])) for name, mape in figures["methods, mean MAPE, %"].items()
    )
    return Table("Single methods, synthetic data", ("method", "mean MAPE, %", "best in, of the hours"), rows)


def pick_table(figures: Mapping[str, Any]) -> Table:
    rows = [
        (
            WAYS[way], f"{found['mape']:.2f}", percent(found["weekly"]), f"{found['weekly_excess']:.4f}",
            percent(found["accuracy"]), percent(found["close"]), f"{found['excess']:.4f}",
        )
        for way, found in figures["picks"].items()
    ]  # fmt: skip
    rows.append(("thesis, p. 54: neural network", "-", "84.12 to 94.48 %", "0.0318 (printed as -0.0318)", "-", "-", "-"))
    header = ("picked by", "mean MAPE, %", "best of a customer and week", "Eq. 3.2", "best of an hour",
        "within a point of it", "Eq. 3.2, by hour")  # fmt: skip
    return Table("Ways to pick, synthetic data", header, tuple(rows))


def fold_table(main: Sequence[DataSetResult]) -> Table:
    rows = tuple(
        (f"data set {each.case.seed}", *(f"{accuracy:.4f}" for accuracy in each.accuracies), f"{each.deviation:.4f}")
        for each in main
    )
    header = ("synthetic data", "fold 1", "fold 2", "fold 3", "deviation from the best")
    return Table("Best method picked by the network, in weeks that it did not see", header, rows)


def cdf_plot(result: DataSetResult) -> Plot:
    """Return Fig. 3.7 for one data set: part of the forecasts by MAPE."""
    curves: dict[str, Floats] = {
        name: np.concatenate([fold.methods[name].ravel() for fold in result.folds]) for name in METHODS
    }
    for way in (RANDOM, SELECTOR, ORACLE):
        curves[way] = np.concatenate([fold.picks[way].errors.ravel() for fold in result.folds])
    part = np.linspace(0, 1, POINTS + 1)
    lines = tuple(
        Curve(
            name,
            np.round(np.quantile(found, part[:-1]), 3).tolist(),
            part[:-1].tolist(),
            colour=number,
            dash="solid" if name in METHODS else "dash" if name == RANDOM else "dot",
        )
        for number, (name, found) in enumerate(curves.items())
    )
    return Plot("Part of the forecasts with at most this MAPE (synthetic data, compare Fig. 3.7)", "MAPE, %", "part", lines)


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: _means_of([each[name] for each in found]) for name in found[0]}


def _means_of(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def _variation_table(varied: Mapping[str, Sequence[Check]]) -> list[Table]:
    if not varied:
        return []
    header = ("assumed", *(check.name for check in next(iter(varied.values()))))
    rows = tuple((name, *(str(check.value) for check in checks)) for name, checks in varied.items())
    good = tuple(not any(check.missed for check in checks) for checks in varied.values())
    return [Table("The bars under other assumptions, simulated", header, rows, good)]
