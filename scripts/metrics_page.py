"""Prints docs/reference/metrics.md, made from the table of metrics."""

from collections.abc import Iterable, Iterator

from elastream.core.metrics import Metric, Rows
from elastream.core.promises import PROMISES, PlantKind, Promise
from elastream.dataflow.operators import Kind
from elastream.observability.metrics import EXPORTED_ROWS, metric_name

INTRODUCTION = """\
# Metrics

An observation has rows for the application, for operators, alternates, hosts, tasks and links. A metric that a plant does
not measure is *unknown* there, never 0. Rates and fractions are means over the last monitoring period or the last batches.

The table names the plants that measure each metric. The sections say how. `scripts/metrics_page.py` writes this page. The
conformance suite holds every plant to it.
"""

LETTERS = dict(zip(PlantKind, "DWUCR", strict=True))


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield "Plants: " + ", ".join(f"**{letter}** {plant}" for plant, letter in LETTERS.items()) + ".\n"
    yield f"metric | {' | '.join(Rows)}"
    yield "---" + "|---" * len(Rows)
    for metric in Metric:
        plants = ("".join(letters(each for each in PROMISES[metric] if each.rows is rows)) for rows in Rows)
        yield f"[`{metric}`](#{metric}) | {' | '.join(plants)}".rstrip()
    same_as: dict[tuple[str, ...], Metric] = {}
    for metric in Metric:
        yield f"\n## {metric}\n\n{metric.meaning} Unit: {metric.quantity.unit}.\n"
        items = tuple(measurements(metric))
        first = same_as.setdefault(items, metric)
        yield from items if first is metric else (f"Measured as [`{first}`](#{first}).",)
        if exported := [
            f"`{metric_name(r, metric)}`" for r in EXPORTED_ROWS if any(r is each.rows for each in PROMISES[metric])
        ]:
            yield f"\nPrometheus: {', '.join(exported)}"


def letters(promises: Iterable[Promise]) -> str:
    """Return the letters of the plants that give any of `promises`."""
    plants = {plant for each in promises for plant in each.plants}
    return "".join(letter for plant, letter in LETTERS.items() if plant in plants)


def measurements(metric: Metric) -> Iterator[str]:
    """Yield a list item for each way in which plants measure a metric, with the letters of these plants."""
    for rows in Rows:
        ways: dict[tuple[str, str], list[Promise]] = {}
        for plant in PlantKind:
            for each in PROMISES[metric]:
                if each.rows is rows and plant in each.plants:
                    ways.setdefault((each.how, where(each)), []).append(each)
        for (how, condition), promises in ways.items():
            yield f"- *{rows}*, **{letters(promises)}**: {how}" + (f" (if {condition})" if condition else "")


def where(promise: Promise) -> str:
    """Return the kinds of operators and the conditions of a promise."""
    of_operators = promise.rows in (Rows.OPERATOR, Rows.ALTERNATE)
    kinds = [f"{kind}s" for kind in Kind if kind in promise.kinds] if of_operators else []
    all_of_them = len(kinds) in (0, len(Kind))
    text = "" if all_of_them else ", ".join(kinds).replace("keyeds", "keyed operators")
    return "; ".join([*([text] if text else []), *promise.when])


if __name__ == "__main__":
    print("\n".join(page()))
