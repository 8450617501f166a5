"""Page of the simulated VISP experiment: Tables 3 to 6, plots as in Figures 8 to 11."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Block, Prose, Table, hosts_plot, load_curve
from elastream.report.plots import Plot
from elastream_papers.harness.assumptions import assumption_table, scaled, variations
from elastream_papers.harness.report import Sections, comparison_table, report
from elastream_papers.visp import experiment as visp
from elastream_papers.visp.bars import PRINTED, Figures, Statistic, bars, orders, tabulate
from elastream_papers.visp.manufacturing import HOLD_EVERY, HOLD_SECONDS, MONITORING, VispAssumptions
from elastream_papers.visp.paper import COLUMNS, TABLES, implied

# the paper's figure by pattern
FIGURES: Mapping[str, str] = {"stepwise": "8", "two-level": "9", "walk 1": "10", "walk 2": "11"}


@dataclass(frozen=True, slots=True)
class VispVariation:
    """Results of the bars with one assumption multiplied."""

    assumption: str
    factor: float
    checks: tuple[Check, ...]

    @property
    def name(self) -> str:
        return f"{self.assumption} x {self.factor:g}"


def outcome(
    runs: Sequence[visp.VispRun], seconds: float, varied: Sequence[VispVariation] = (), held: Sequence[visp.VispRun] = ()
) -> Findings:
    """Return the findings. held: runs with network delays.

    Bars are of the authors' system.
    """
    figures = tabulate(runs)
    checks, by_text = bars(figures), bars(figures, "text")
    return report(
        "VISP: provisioning by billing time unit (simulated)",
        "Cost-efficient enactment of stream processing topologies (Hochreiner et al., PeerJ CS 2017), reproduced on "
        "the simulated plant. Every figure that is not marked as the paper's is simulated. Durations are per operator "
        "and contain messaging, as the paper's do. Columns 'btu': a host that cannot be emptied at the end of its BTU "
        "loses the instances that may be given up, as in the authors' system. Columns 'text': it keeps them all, as "
        "the paper's text says.",
        {
            "the text's rule": {
                "bars that would hold": f"{sum(check.verdict == 'held' for check in by_text)} of {len(by_text)}",
                "missed": {check.name: check.value for check in by_text if check.missed},
                "undecided": {check.name: check.value for check in by_text if check.holds is None},
            },
            "orders without tolerance": {
                check.name: check.verdict for pattern, columns in figures.items() for check in orders(pattern, columns)
            },
            "tables": {pattern: _columns(columns) for pattern, columns in figures.items()},
            "items": {pattern: columns["btu 10"]["items"].mean for pattern, columns in figures.items()},
            "with network delays": {pattern: _columns(columns) for pattern, columns in tabulate(held).items()},
            "sensitivity": [
                {
                    "assumption": v.assumption,
                    "factor": v.factor,
                    "missed": [c.name for c in v.checks if c.missed],
                    "undecided": [c.name for c in v.checks if c.holds is None],
                }
                for v in varied
            ],
        },
        checks,
        _sections(runs, figures, by_text, varied, held),
        seconds,
        paper={
            **{pattern: _columns(printed(pattern)) for pattern in figures},
            "items that its penalties mean": {pattern: implied(pattern) for pattern in figures},
        },
        verdict=verdict(checks, by_text, varied),
        runs=len(runs) + len(held),
    )


def run_visp(options: ExperimentOptions) -> Findings:
    """Run the whole experiment. quick: the stepwise pattern's seven runs, one seed.

    sensitivity: also with every assumption halved and doubled, and the 200 ms wait of published O2 and O6.
    """
    wanted = visp.cases(("stepwise",), (1,)) if options.quick else visp.cases()
    held = [] if options.quick else visp.cases(("two-level",), policies=("btu", "threshold"), held=True)
    given = VispAssumptions()
    changes = {**variations(given), ("light_work", 10.0): scaled(given, "light_work", 10.0)} if options.sensitivity else {}
    seeds, policies = ((1,) if options.quick else visp.SENSITIVITY_SEEDS), ("btu", "threshold")
    # One batch, so that workers are not idle between two variations.
    batches = [wanted, held, *(visp.cases(("stepwise",), seeds, changed, policies) for changed in changes.values())]
    found, seconds = run_all(
        visp.run_case,
        [case for batch in batches for case in batch],
        options,
        lambda case: f"{case.pattern}, {case.name}, seed {case.seed}",
        warm=lambda case: visp.make(case).advance(MONITORING),
    )
    results = iter(found)
    runs, delayed, *others = ([next(results) for _ in batch] for batch in batches)
    varied = [
        VispVariation(name, factor, bars(tabulate(mine))) for (name, factor), mine in zip(changes, others, strict=True)
    ]
    return outcome(runs, seconds, varied, delayed)


def printed(pattern: str) -> dict[str, dict[str, Statistic]]:
    """Return the paper's figures of a pattern, by column and metric."""
    return {column: {metric: row[column] for metric, row in TABLES[pattern].rows.items()} for column in COLUMNS}


def verdict(checks: Sequence[Check], by_text: Sequence[Check], varied: Sequence[VispVariation] = ()) -> str:
    """Return the conclusion: the authors' system by topic, then the text's rule."""
    said = []
    for kind in Topic:
        found = [check for check in checks if kind in kinds_missed(check)]
        if found:
            said.append(f"{_are(found)} about {kind.value}: {found[0].name} is {found[0].value}.")
    missed = [check for check in by_text if check.missed]
    if missed:
        said.append(
            "By the rule of the paper's text, where a host that cannot be emptied keeps all its instances, "
            f"{len(missed)} of {len(by_text)} bars would be missed: hosts are renewed whole, so that instances hardly go "
            "and the length of the BTU has nothing to act on."
        )
    if varied:
        said.append(_hangs_on(varied))
    return " ".join(said)


class Topic(Enum):
    """The claim that a bar tests."""

    POLICIES = "the BTU policy against the baseline"
    EARLY = "early releases by the BTU policy"
    AMONG = "BTU10, BTU30 and BTU60 among each other"


def kinds_missed(check: Check) -> set[Topic]:
    """Return the claims that a missed bar contradicts; the order of all four is two."""
    if not check.missed:
        return set()
    if "early host releases of BTU" in check.name:
        return {Topic.EARLY}
    if "orders threshold" in check.name:
        threshold, *btus = (float(part.rstrip("%")) for part in str(check.value).split(" / "))
        beaten, mixed = threshold >= min(btus), btus != sorted(btus)
        # A tie in the shown digits is between BTUs: the baseline is far off or better.
        return {*([Topic.POLICIES] if beaten else []), *([Topic.AMONG] if mixed or not beaten else [])}
    return {Topic.AMONG if "as the BTU grows" in check.name else Topic.POLICIES}


def _are(checks: Sequence[Check]) -> str:
    return f"{len(checks)} of the missed bars {'is' if len(checks) == 1 else 'are'}"


def _hangs_on(varied: Sequence[VispVariation]) -> str:
    """Return the assumptions under which each kind of bar holds."""
    said = []
    for kind in Topic:
        by_missed: dict[bool, list[str]] = {True: [], False: []}
        for each in varied:
            by_missed[any(kind in kinds_missed(check) for check in each.checks)].append(each.name)
        if not by_missed[True]:
            said.append(f"Bars about {kind.value} hold whatever is assumed.")
        elif len(by_missed[False]) > len(by_missed[True]):
            said.append(f"Bars about {kind.value} all hold but with {', '.join(by_missed[True])}.")
        else:
            said.append(f"Bars about {kind.value} all hold with {', '.join(by_missed[False]) or 'none of the variations'}.")
    return "On the stepwise pattern: " + " ".join(said)


def sensitivity_table(varied: Sequence[VispVariation]) -> Table:
    """Return the bars missed with each assumption multiplied; stepwise pattern, all seeds."""
    rows = []
    for variation in varied:
        missed = [check.name.removeprefix("stepwise: ") for check in variation.checks if check.missed]
        rows.append((variation.name, str(len(missed)), "; ".join(missed) or "none"))
    return Table(
        "Every assumption halved and doubled, and light work as some published versions have it (stepwise pattern)",
        ("assumption", "missed", "bars missed"),
        tuple(rows),
    )


def _sections(
    runs: Sequence[visp.VispRun],
    figures: Figures,
    by_text: Sequence[Check],
    varied: Sequence[VispVariation],
    held: Sequence[visp.VispRun],
) -> Sections:
    delays = [delays_table(figures, tabulate(held))] if held else []
    patterns: dict[str, list[Block]] = {}
    for pattern, columns in figures.items():
        name = TABLES[pattern].name
        caption = f"{pattern}: simulated beside the paper's {name}, mean (σ) over {len(seeds_of(runs))} seeds"
        paper = printed(pattern)
        paper |= {column.replace("btu", "text"): rows for column, rows in paper.items() if column.startswith("btu")}
        plots = [_plot(run) for run in runs if run.case.pattern == pattern and run.case.seed == runs[0].case.seed]
        patterns[pattern] = [comparison_table(caption, columns, paper, name, written), *plots]
    return {
        "": [Prose(_without_tolerance(figures)), by_text_table(by_text), items_table(figures), *delays],
        **patterns,
        "What is assumed": [assumption_table(VispAssumptions())],
        "What depends on it": [sensitivity_table(varied)] if varied else [],
    }


def seeds_of(runs: Sequence[visp.VispRun]) -> set[int]:
    return {run.case.seed for run in runs}


def by_text_table(by_text: Sequence[Check]) -> Table:
    """Return the bars' values under the text's rule, as figures."""
    rows = tuple((each.name, str(each.value), each.bound, each.verdict) for each in by_text)
    return Table(
        "The same by the rule of the paper's text: figures, not checks", ("bar", "value", "bound", "would be"), rows
    )


def items_table(figures: Figures) -> Table:
    """Return our items and those each column implies (millions); `implied_items`."""
    rows = []
    for pattern, columns in figures.items():
        here = f"{columns['btu 10']['items'].mean / 1e6:.2f}"
        for level, row in implied(pattern).items():
            rows.append((f"{pattern}, {level}", here, *(f"{value / 1e6:.2f}" for value in row.values())))
    caption = "Items that are judged (millions): simulated, and as the paper's penalties and compliance mean them"
    return Table(caption, ("", "here", *(f"paper, {column}" for column in COLUMNS)), tuple(rows))


def delays_table(without: Figures, held: Figures) -> Table:
    """Return changes under network delays, mean (σ), by pattern."""
    metrics = (
        "near-real-time compliance", "resource cost", "upscalings", "scaling actions", "objective (Eq. 1)",
        *(f"instances, minutes {name}" for name in visp.TIMES),
    )  # fmt: skip
    rows = []
    for pattern, columns in held.items():
        for metric in metrics:
            rows.append((f"{pattern}: {metric}", *(written(metric, columns[name][metric]) for name in columns)))
            beside = without.get(pattern)
            if beside:
                rows.append(("   without delays", *(written(metric, beside[name][metric]) for name in columns)))
    names = next(iter(held.values()))
    what = f"Network delays of {HOLD_SECONDS:g} s about every {HOLD_EVERY:g} s that hold all arrivals up (simulated)"
    return Table(what, ("", *names), tuple(rows))


def _without_tolerance(figures: Figures) -> str:
    """Return results of the compliance orders without tolerance between billing units."""
    strict = [check for pattern, columns in figures.items() for check in orders(pattern, columns)]
    left = [
        f"{each.name.split(' compliance')[0]} ({each.verdict}: {each.value})" for each in strict if each.verdict != "held"
    ]
    said = (
        f"BTU10 <= BTU30 <= BTU60 is judged to {100 * PRINTED:g} points: the paper prints whole per cent, to which "
        "two that are alike are in order. "
    )
    return said + (f"Without that, not held: {'; '.join(left)}." if left else "Without that all orders are held as well.")


def _plot(run: visp.VispRun) -> Plot:
    minutes, offered, instances, hosts = (list(column) for column in zip(*run.series, strict=True))
    return hosts_plot(
        f"{run.case.pattern}, {run.case.name} {run.case.minutes or ''} "
        f"(simulated; compare Figure {FIGURES[run.case.pattern]})",
        "minutes",
        minutes,
        load_curve("data volume", minutes, offered, steps=True),
        "items/s",
        instances,
        hosts,
        "operator instances",
    )


def written(metric: str, value: Statistic) -> str:
    if math.isnan(value.mean):
        return "-"
    if "compliance" in metric:
        return f"{value.mean:.1%} ({value.deviation:.1%})"
    if metric == "items":
        return f"{value.mean:,.0f}"
    return f"{value.mean:.2f} ({value.deviation:.2f})"


def _columns(columns: Mapping[str, Mapping[str, Statistic]]) -> dict[str, dict[str, dict[str, float | None]]]:
    return {column: {metric: _json(value) for metric, value in metrics.items()} for column, metrics in columns.items()}


def _json(value: Statistic) -> dict[str, float | None]:
    found = {"mean": value.mean, "deviation": value.deviation}
    return {name: None if math.isnan(number) else number for name, number in found.items()}
