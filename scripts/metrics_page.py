"""Prints docs/reference/metrics.md, made from the table of metrics."""

from collections.abc import Iterator

from elastream.core.metrics import PLANTS, Metric, Promise, Rows
from elastream.dataflow.operators import Kind
from elastream.observability.metrics import EXPORTED, metric_name

INTRODUCTION = """\
# Metrics

What an `Observation` holds, by rows: the application, operators, their alternates, hosts, tasks and links. A metric that
a plant does not measure is *unknown* there, never 0. Rates and fractions are means over the last monitoring period or the
last batches.

This page is written from the table in `elastream.core.metrics` (`scripts/metrics_page.py`), and the conformance
suite holds every plant to it: what is promised here is known while a dataflow runs, and nothing else is.
"""


def page() -> Iterator[str]:
    """The lines of the page."""
    yield INTRODUCTION
    yield "Plants: " + ", ".join(f"**{letter}** {plant}" for letter, plant in PLANTS.items()) + ".\n"
    yield f"| metric | unit | {' | '.join(Rows)} |"
    yield "| --- | --- |" + " --- |" * len(Rows)
    for metric in Metric:
        plants = ("".join(letter for letter, plant in PLANTS.items() if (rows, plant) in metric.promises) for rows in Rows)
        yield f"| [`{metric}`](#{metric}) | {metric.quantity.unit} | {' | '.join(plants)} |"
    for metric in Metric:
        yield f"\n## {metric}\n\n{metric.meaning} Unit: {metric.quantity.unit}.\n"
        yield "| of | plant | how it is measured | where |\n| --- | --- | --- | --- |"
        for (rows, plant), promises in metric.promises.items():
            for promise in promises:
                yield f"| {rows} | {plant} | {promise.how} | {where(rows, promise)} |"
        if exported := [f"`{metric_name(r, metric)}`" for r in EXPORTED if any(r is each for each, _ in metric.promises)]:
            yield f"\nPrometheus: {', '.join(exported)}"


def where(rows: Rows, promise: Promise) -> str:
    """Kinds of operator and conditions that a promise holds for."""
    of_operators = rows in (Rows.OPERATOR, Rows.ALTERNATE)
    kinds = [f"{kind}s" for kind in Kind if kind in promise.kinds] if of_operators else []
    all_of_them = len(kinds) in (0, len(Kind))
    said = "" if all_of_them else ", ".join(kinds).replace("keyeds", "keyed operators")
    return "; ".join([*([said] if said else []), *promise.given])


if __name__ == "__main__":
    print("\n".join(page()))
