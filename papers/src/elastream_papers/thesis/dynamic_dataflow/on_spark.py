"""The application of the thesis's section 3.6 on Spark, checked record by record."""

import tempfile
import time
from pathlib import Path

from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table
from elastream_papers.harness.applications import application
from elastream_papers.harness.report import report

SHORT, FEWER = 16, 6  # hours and customers with `quick`
SOURCE = "our bar: all of them"


def run_dynamic_dataflow_spark(options: ExperimentOptions) -> Findings:
    """Run the application on a cluster of this machine and check all results.

    quick: fewer hours and customers.
    """
    begun = time.monotonic()
    example = application("demand_response")
    options.progress("readings, methods, training", 0, 2)
    plan = example.plan(SHORT, FEWER) if options.quick else example.plan()
    options.progress("on Spark", 1, 2)
    with tempfile.TemporaryDirectory(prefix="demand-response-") as folder:
        checked = example.carry_out(plan, Path(folder), show=False)
        lines = example.page(plan, Path(folder), checked)
    options.progress("done", 2, 2)
    seconds = time.monotonic() - begun
    due = plan.hours * len(plan.customers)
    checks = (
        Check.at_least("forecasts checked, of those due", checked.forecasts / due, 1.0, SOURCE),
        Check.at_most("results that differ from plain Python", float(len(checked.differences)), 0.0, SOURCE),
        Check.at_least("switches of a customer's method", float(checked.switches), 1.0, "at least one is seen"),
        Check.at_least(
            "hours in which a peak woke the sleeping branch", float(checked.curtailed), 1.0, "at least one is seen"
        ),
    )
    figures = {
        "checked": {
            name: getattr(checked, name)
            for name in ("forecasts", "methods", "switches", "errors", "hours", "curtailed", "reductions")
        },
        "differences": list(checked.differences[:10]),
        "data": {"kind": "synthetic", "customers": len(plan.customers), "hours": plan.hours},
    }
    table = Table(
        "By hour (Spark, synthetic readings)", ("what was expected, forecast and chosen",), tuple((each,) for each in lines)
    )
    return report(
        "Dynamic dataflows: demand response on Spark",
        "The dataflow of Fig. 3.6 on Spark, with synthetic readings: forecasts of each customer by the method that a key "
        "table names, compared in a window with what came, and a branch that sleeps until a peak is expected.",
        figures,
        checks,
        {"": [table]},
        seconds,
        plant="spark",
        data="synthetic",
    )
