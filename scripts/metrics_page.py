"""Prints docs/reference/metrics.md, made from the table of metrics."""

from collections.abc import Iterable, Iterator

from elastream.core.metrics import Metric, Rows
from elastream.core.promises import PROMISES, Condition, PlantKind, Promise
from elastream.dataflow.operators import Kind
from elastream.observability.metrics import EXPORTED_ROWS, metric_name

INTRODUCTION = """\
# Metrics

An observation has rows for the application, for operators, alternates, hosts, tasks and links. A metric that a plant does
not measure is *unknown* there, never 0. Figures cover the last monitoring period (**U**), batches of the last 3 s (**D**,
**C**), or the last seven batches (**W**, and tasks and links on Spark), where nothing else is said.

The table names the plants that measure each metric. The sections say how, with the kinds of operators and other conditions
in brackets. *Known input*: the operators before it report their output. `scripts/metrics_page.py` writes this page. The
conformance suite holds every plant to it.
"""

LETTERS = dict(zip(PlantKind, "DWUC", strict=True))
NOUNS = {kind: "keyed" if kind is Kind.KEYED else f"{kind}s" for kind in Kind}
# On the page the subject is clear.
SHORT = {
    Condition.PYTHON: "Python functions",
    Condition.NATIVE: "native code",
    Condition.INPUT_METERED: "with known input",
    Condition.STAGE_HEAD: "first of their stage",
    Condition.QUERY_HEAD: "first of their query",
    Condition.DURABLE_INPUT: "behind a durable edge",
    Condition.COMPOSITION_CHANGED: "after a change of the composition",
    Condition.SOURCES_COUNTED: "each source has a load, local files, or reports its lag",
    Condition.LAG_REPORTED: "reports its lag",
    Condition.HOST_UP: "up",
}


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield INTRODUCTION
    yield "Plants: " + ", ".join(f"**{letter}** {plant}" for plant, letter in LETTERS.items()) + ".\n"
    yield f"metric|{'|'.join(Rows)}"
    yield "---" + "|---" * len(Rows)
    for metric in Metric:
        plants = ("".join(letters(each for each in PROMISES[metric] if each.rows is rows)) for rows in Rows)
        yield f"[`{metric}`](#{metric})|{'|'.join(plants)}"
    same_as: dict[tuple[str, ...], Metric] = {}
    for metric in Metric:
        yield f"\n## {metric}\n\n{metric.meaning} Unit: {metric.quantity.unit}.\n"
        items = tuple(measurements(metric))
        first = same_as.setdefault(items, metric)
        yield from items if first is metric else (f"Measured as [`{first}`](#{first}).\n",)
        if exported := [
            f"`{metric_name(r, metric)}`" for r in EXPORTED_ROWS if any(r is each.rows for each in PROMISES[metric])
        ]:
            yield f"Prometheus: {', '.join(exported)}"


def letters(promises: Iterable[Promise]) -> str:
    """Return the letters of the plants that give any of `promises`."""
    plants = {plant for each in promises for plant in each.plants}
    return "".join(letter for plant, letter in LETTERS.items() if plant in plants)


def measurements(metric: Metric) -> Iterator[str]:
    """Yield the ways in which plants measure a metric, by kind of row, with the letters of these plants."""
    for rows in Rows:
        promises = [each for each in PROMISES[metric] if each.rows is rows]
        ways: dict[str, dict[str, list[Promise]]] = {}
        for plant in PlantKind:
            for each in promises:
                if plant in each.plants:
                    ways.setdefault(each.how, {}).setdefault(where(each), []).append(each)
        if promises:
            yield f"{rows}:\n"
        for how, conditions in ways.items():
            plants: dict[str, list[str]] = {}
            for condition, some in conditions.items():
                plants.setdefault(letters(some), []).append(condition)
            texts = (f"**{who}**" + (f" ({' | '.join(each)})" if all(each) else "") for who, each in plants.items())
            yield f"- {', '.join(texts)}: {how}"
        if promises:
            yield ""


def where(promise: Promise) -> str:
    """Return the kinds of operators and the conditions of a promise."""
    of_operators = promise.rows in (Rows.OPERATOR, Rows.ALTERNATE)
    kinds = [NOUNS[kind] for kind in Kind if kind in promise.kinds] if of_operators else []
    all_of_them = len(kinds) in (0, len(Kind))
    return "; ".join([*([] if all_of_them else [", ".join(kinds)]), *(SHORT.get(each, each) for each in promise.when)])


if __name__ == "__main__":
    print("\n".join(page()))
