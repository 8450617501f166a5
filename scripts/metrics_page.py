"""Prints docs/reference/metrics.md, made from the table of metrics."""

from collections.abc import Iterator

from elastream.core.metrics import PLANTS, Metric, Promise, Rows
from elastream.dataflow.operators import Kind
from elastream.observability.metrics import EXPORTED_ROWS, metric_name

INTRODUCTION = """\
# Metrics

An observation has rows for the application, for operators, alternates, hosts, tasks and links. A metric that a plant does
not measure is *unknown* there, never 0. Rates and fractions are means over the last monitoring period or the last batches.

The table names the plants that measure each metric. The sections say how. `scripts/metrics_page.py` writes this page. The
conformance suite holds every plant to it.
"""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield "Plants: " + ", ".join(f"**{letter}** {plant}" for letter, plant in PLANTS.items()) + ".\n"
    yield f"| metric | {' | '.join(Rows)} |"
    yield "| --- |" + " --- |" * len(Rows)
    for metric in Metric:
        plants = ("".join(letter for letter, plant in PLANTS.items() if (rows, plant) in metric.promises) for rows in Rows)
        yield f"| [`{metric}`](#{metric}) | {' | '.join(plants)} |"
    same_as: dict[tuple[str, ...], Metric] = {}
    for metric in Metric:
        yield f"\n## {metric}\n\n{metric.meaning} Unit: {metric.quantity.unit}.\n"
        items = tuple(measurements(metric))
        first = same_as.setdefault(items, metric)
        yield from items if first is metric else (f"Measured as [`{first}`](#{first}).",)
        rows = [each for each in EXPORTED_ROWS if any(each is row for row, _ in metric.promises)]
        if exported := [f"`{metric_name(each, metric)}`" for each in rows]:
            yield f"\nPrometheus: {', '.join(exported)}"


def measurements(metric: Metric) -> Iterator[str]:
    """Yield a list item for each way in which plants measure a metric, with the letters of these plants."""
    letters: dict[tuple[Rows, str, str], str] = {}
    for letter, plant in PLANTS.items():
        for (rows, promising), promises in metric.promises.items():
            for promise in promises if promising is plant else ():
                key = (rows, promise.how, where(rows, promise))
                letters[key] = letters.get(key, "") + letter
    for rows in Rows:
        for (of, how, condition), plants in letters.items():
            if of is rows:
                yield f"- *{rows}*, **{plants}**: {how}" + (f" (if {condition})" if condition else "")


def where(rows: Rows, promise: Promise) -> str:
    """Kinds of operator and conditions that a promise holds for."""
    of_operators = rows in (Rows.OPERATOR, Rows.ALTERNATE)
    kinds = [f"{kind}s" for kind in Kind if kind in promise.kinds] if of_operators else []
    all_of_them = len(kinds) in (0, len(Kind))
    said = "" if all_of_them else ", ".join(kinds).replace("keyeds", "keyed operators")
    return "; ".join([*([said] if said else []), *promise.given])


if __name__ == "__main__":
    print("\n".join(page()))
