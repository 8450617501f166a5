"""The application of the thesis's section 3.6 on Spark, end to end: `examples/demand_response.py`, which checks every
forecast and every choice of customers against plain Python over the same telegrams and the recorded compositions.

Accuracy of the selection is a matter of the methods and the data, which the simulated experiment is about; here it is
whether what was chosen is what ran, on every record.
"""

import tempfile
import time
from pathlib import Path

from elastream.experiments.applications import application
from elastream.experiments.cases import ExperimentOptions
from elastream.experiments.findings import Check, Findings, check_table, counted, environment
from elastream.experiments.page import Page, Prose, Table

SHORT, FEWER = 16, 6
"""Hours and customers with `quick`."""
SOURCE = "our bar: all of them"


def run_dynamic_dataflow_spark(options: ExperimentOptions) -> Findings:
    """Run the application on a cluster of this machine and check all that it gave. quick: fewer hours and customers."""
    begun = time.monotonic()
    example = application("demand_response")
    options.progress("readings, methods, training", 0, 2)
    given = example.plan(SHORT, FEWER) if options.quick else example.plan()
    options.progress("on Spark", 1, 2)
    with tempfile.TemporaryDirectory(prefix="demand-response-") as folder:
        checked = example.carry_out(given, Path(folder), show=False)
        lines = example.page(given, Path(folder), checked)
    options.progress("done", 2, 2)
    seconds = round(time.monotonic() - begun, 1)
    due = given.hours * len(given.customers)
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
        "data": {"kind": "synthetic", "customers": len(given.customers), "hours": given.hours},
        "seconds": seconds,
    }
    table = Table(
        "By hour (Spark, synthetic readings)", ("what was expected, forecast and chosen",), tuple((each,) for each in lines)
    )
    prose = Prose(
        f"{counted(checks)}. The dataflow of Fig. 3.6 on Spark, with synthetic readings: forecasts of each customer by the "
        "method that a key table names, compared in a window with what came, and a branch that sleeps until a "
        "peak is expected."
    )
    page = Page("Dynamic dataflows: demand response on Spark", (prose, check_table(checks, "Spark"), table))
    return Findings(figures, {}, checks, page, environment(plant="spark", data="synthetic", seconds=seconds))
