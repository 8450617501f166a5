"""Writes docs/figures.md, the README's figures and those within other pages from docs/figures/*.json, which `--json` of
measuring commands wrote.

    python scripts/figures.py           # what `make figures` does
    python scripts/figures.py --check   # ends with status 1 where a page is not what the files give
    python scripts/figures.py --commands [NAME ...]   # what measures them, a line each: `make measure` runs these

Nothing is measured here. A file whose environment has `earlier` was taken down from a page older than these files;
measuring anew replaces it.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "figures.md"
README = DOCS.parent / "README.md"


@dataclass(frozen=True)
class Source:
    """A file of figures: what it is about, where they come from, the command that writes it, and where to read on."""

    file: str
    title: str
    plant: str
    command: str
    read: str = ""


SPARK, SIMULATED, PLANNING = "measured on Spark", "simulated", "planning alone, in one process"

SOURCES = (
    Source("against-spark", "Beside open-source Spark", SPARK, "python benchmarks/against_spark.py",
           "how-to/benchmarks.md#beside-open-source-spark"),
    Source("demo", "The demo within its service level", SPARK, "python benchmarks/demo.py"),
    Source("overhead", "Throughput beside plain PySpark", SPARK, "python benchmarks/overhead.py"),
    Source("fusion", "A fan-out and fan-in as one stage", SPARK, "python benchmarks/fusion.py", "explanation/spark.md"),
    Source("dynamic", "What alternates, a choice, guards and key tables cost a record", SPARK,
           "python benchmarks/dynamic.py", "how-to/key-tables.md"),
    Source("release", "Giving hosts back under load", SPARK, "python benchmarks/release.py", "explanation/spark.md"),
    Source("reaction", "From a load step to the service level", SPARK, "python benchmarks/reaction.py"),
    Source("start", "From lease to first task", SPARK, "python benchmarks/start.py",
           "how-to/hosts.md#how-long-a-host-takes"),
    Source("one-core", "Executors on one core optimise late", SPARK, "python benchmarks/one_core.py",
           "explanation/spark.md#what-a-batch-costs-and-what-was-taken-off-it"),
    Source("nstorm", "Moving state partitions, N-Storm", SPARK, "elastream experiment nstorm", "explanation/nstorm.md"),
    Source("switching", "Random switches with faults among them", SPARK, "python benchmarks/switching.py",
           "explanation/consistency.md"),
    Source("soak", "Thirty days, and ten thousand batches", SPARK, "python benchmarks/soak.py", "how-to/retention.md"),
    Source("closed", "What authentication and encryption cost", SPARK, "python benchmarks/closed.py",
           "explanation/security.md"),
    Source("churn", "Random moves, losses, decommissions and false alarms", SPARK, "python benchmarks/churn.py",
           "explanation/nstorm.md"),
    Source("faults-spark", "A campaign of faults on one cluster", SPARK, "python benchmarks/faults.py --spark",
           "explanation/fault-campaign.md"),
    Source("autopilot-growth", "Autopilot: one executor grows to four", SPARK,
           "python benchmarks/autopilot.py --part growth", "how-to/autopilot.md"),
    Source("autopilot-live-skew", "Autopilot: skewed keys", SPARK,
           "python benchmarks/autopilot.py --part live-skew", "how-to/autopilot.md"),
    Source("autopilot-cost", "Autopilot: its own use of CPU", SPARK,
           "python benchmarks/autopilot.py --part cost", "how-to/autopilot.md"),
    Source("yarn-overhead", "Autopilot on YARN: what it costs", SPARK, "python benchmarks/yarn.py --part overhead",
           "how-to/clusters.md"),
    Source("yarn-release", "Autopilot on YARN: executors given back under load", SPARK,
           "python benchmarks/yarn.py --part release", "how-to/clusters.md"),
    Source("visp-spark", "VISP on Spark", SPARK, "elastream experiment visp --plant spark", "explanation/visp.md"),
    Source("e2df-spark", "E2DF on Spark", SPARK, "elastream experiment e2df --plant spark", "explanation/e2df.md"),
    Source("otd-spark", "OTD on Spark", SPARK, "elastream experiment otd --plant spark", "explanation/otd.md"),
    Source("elastic-allocator-spark", "Elastic Allocator on Spark", SPARK,
           "elastream experiment elastic-allocator --plant spark", "explanation/elastic-allocator.md"),
    Source("dynamic-dataflow-spark", "Dynamic dataflows on Spark", SPARK,
           "elastream experiment dynamic-dataflow --plant spark", "explanation/demand-response.md"),
    *(
        Source(f"resilience-spark-{part}", f"Resilience on Spark: {about}", SPARK,
               f"elastream experiment resilience --plant spark --part {part}", "explanation/resilient-state.md")
        for part, about in (
            ("kills", "hosts and a zone killed"), ("moves", "an interval moves"),
            ("checkpoints", "checkpoints beside the state"),
            ("throughput", "records/s with copies, and with state outside"), ("skew", "a skew is balanced"),
        )
    ),
    Source("recovery", "What a lost host costs, with copies and without", SPARK, "python benchmarks/recovery.py",
           "how-to/survive-lost-hosts.md"),
    Source("linear-road-spark", "Linear Road on Spark: a load that quadruples", SPARK,
           "python benchmarks/linear_road_on_spark.py", "explanation/linear-road.md"),
    Source("visp", "VISP", SIMULATED, "elastream experiment visp", "explanation/visp.md"),
    Source("e2df", "E2DF", SIMULATED, "elastream experiment e2df", "explanation/e2df.md"),
    Source("otd", "OTD", SIMULATED, "elastream experiment otd", "explanation/otd.md"),
    Source("elastic-allocator", "Elastic Allocator", SIMULATED, "elastream experiment elastic-allocator",
           "explanation/elastic-allocator.md"),
    Source("dynamic-dataflow", "Dynamic dataflows: forecasts by the method that suits (synthetic readings)", SIMULATED,
           "elastream experiment dynamic-dataflow", "explanation/demand-response.md"),
    Source("reactive", "Value against cost: reactive scheduling", SIMULATED, "elastream experiment reactive",
           "explanation/value-against-cost.md"),
    Source("lookahead", "Value against cost: look-ahead scheduling", SIMULATED, "elastream experiment lookahead",
           "explanation/look-ahead.md"),
    Source("resilience", "Resilience: reducers on a ring, the thesis's own design", SIMULATED,
           "elastream experiment resilience", "explanation/resilient-state.md"),
    Source("autopilot-skew", "Autopilot: skewed keys, 64 partitions", SIMULATED,
           "python benchmarks/autopilot.py --part skew", "how-to/autopilot.md"),
    Source("drift", "The simulator beside runs that it was not calibrated with", SPARK, "python benchmarks/drift.py",
           "explanation/simulator.md"),
    Source("promise", "The default policy within its service level", SIMULATED, "python benchmarks/promise.py",
           "how-to/policies.md"),
    Source("faults", "A campaign of faults", SIMULATED, "python benchmarks/faults.py --simulated",
           "explanation/fault-campaign.md"),
    Source("liveness", "Every policy on random dataflows and loads", SIMULATED, "python benchmarks/liveness.py",
           "how-to/benchmarks.md"),
    Source("simulator", "Speed of the simulator", PLANNING, "python benchmarks/simulator.py", "explanation/simulator.md"),
    Source("hierarchy", "Planning rounds of E2DF's managers", PLANNING, "python benchmarks/hierarchy.py",
           "explanation/e2df.md"),
    Source("ring", "Ring lookup beside a modulo", PLANNING, "python benchmarks/ring.py", "explanation/resilient-state.md"),
    Source("placement", "Planning rounds of placement", PLANNING, "python benchmarks/placement.py",
           "explanation/otd.md"),
    Source("guards", "Guards beside plain Python functions", PLANNING, "python benchmarks/guards.py",
           "reference/guards.md"),
    Source("value-cost", "Planning of value against cost", PLANNING, "python benchmarks/value_cost.py",
           "explanation/value-against-cost.md"),
)  # fmt: skip
"""In the order of the page; each group of figures has one origin, so that none stands beside one of another."""

WAYS = {
    "fixed at the peak": "plain PySpark, cluster fixed at the peak",
    "fixed at the mean": "plain PySpark, cluster fixed at the mean",
    "dynamic allocation": "plain PySpark, Spark's dynamic allocation",
    "Autopilot": "plain PySpark, Autopilot beside it",
    "dataflow": "the same as a dataflow",
}
"""Rows of the README's first figure, by their names in the file."""
MEASURED = ("in time", "host-seconds", "cost", "longest batch, s", "rounds with exact results")
"""Its columns."""


@dataclass(frozen=True)
class Headline:
    """A row of the README: what it says, and the bar that it is, as the file names it."""

    says: str
    file: str
    bar: str


HEADLINES = (
    Headline(
        "`make demo`: part of the time within its 3 s, under a load that rises eighteenfold in 90 s",
        "demo",
        "part of the time",
    ),
    Headline("`make demo`: part of the records within its 3 s", "demo", "part of the records"),
    Headline("`make demo`: cost, over that of hosts for the peak throughout", "demo", "cost over"),
    Headline(
        "seconds from a step of the load, eightfold, until latency is within its service level, warmed executors",
        "reaction",
        "warmed executors",
    ),
    Headline("seconds from a host's lease to its first task, over those of before", "start", "first task, first task over"),
    Headline("throughput of a word count under Elastream, over the same in plain PySpark", "overhead", "throughput"),
    Headline("longest batch while a host is given back under load, over the median before", "release", "longest batch"),
    Headline("records/s of a query on YARN with Autopilot beside it, over without", "yarn-overhead", "records/s on YARN"),
    Headline("longest batch on YARN while an executor is given back, over one without", "yarn-release", "longest batch"),
    Headline(
        "batch time after one executor grew to four, with Autopilot over open-source Spark alone",
        "autopilot-growth",
        "batch time",
    ),
    Headline(
        "counts wrong after 500 random moves, losses, decommissions and false alarms under load",
        "churn",
        "counts that differ",
    ),
    Headline(
        "300 faults on one cluster, driver and supervisor killed among them: rules broken", "faults-spark", "rules broken"
    ),
    Headline("... starts of the driver that no kill explains", "faults-spark", "starts of the driver that no kill"),
    Headline(
        "thirty days by a clock that jumps, and 10,000 batches: CPU a batch, last tenth over first, the worse",
        "soak",
        "CPU a batch",
    ),
    Headline("... bytes on disk of the batches on Spark, last tenth over first", "soak", "Spark: bytes on disk"),
    Headline(
        "VISP's policy on Spark: near-real-time compliance over its baseline's, points, under one short load",
        "visp-spark",
        "near-real-time compliance over",
    ),
    Headline(
        "seconds from the kill of one of four hosts to a batch as before", "resilience-spark-kills", "s from the kill of 1"
    ),
    Headline("... of two at once, a whole fault zone", "resilience-spark-kills", "s from the kill of 2"),
    Headline(
        "records/s with one copy of each state partition, over without", "resilience-spark-throughput", "records/s, r = 1"
    ),
    Headline(
        "batches that met two compositions, over 1,000 random switches with faults among them",
        "switching",
        "batch: mixed batches",
    ),
    Headline(
        "seconds of throughput that stopping and restarting costs beyond lazy moves, of 16 of 16 state partitions",
        "nstorm",
        "lost, 16 of 16 tasks: stop and restart's less that of online, lazy",
    ),
    Headline(
        "... that moving all at once costs beyond lazy moves", "nstorm", "16 of 16 tasks: that of online, all at once less"
    ),
    Headline("simulator by constants of another run: part of the pairs whose median latency agrees", "drift", "p50"),
    Headline("... whose 99th percentile does", "drift", "p99"),
    Headline("... whose mean backlog does", "drift", "backlog"),
    Headline(
        "default policy on recorded and made loads, target 30 s: part of the records in time, the worst case",
        "promise",
        ": in time",
    ),
    Headline("the same, billed by the second: hosts over those that work fills, the worst case", "promise", "over those"),
    Headline("the same, billed by the hour: cost over the static peak's, the worst case", "promise", "the static peak's"),
    Headline("rounds of overload in which a policy neither acts nor says why", "liveness", "silent rounds"),
    Headline(
        "500 schedules of 20 faults each over the real control plane: schedules that broke a rule",
        "faults",
        "seeds that broke",
    ),
    Headline("part of the undone mends that these schedules notice", "faults", "mutants caught"),
    Headline(
        "VISP: share of the baseline's total cost that is saved, billed by 60 min, stepwise load",
        "visp",
        "stepwise: near-real-time total cost",
    ),
    Headline(
        "E2DF: share of a static provision's hosts that is saved, operators and hosts elastic, mean of those that are up",
        "e2df",
        "hosts that are up below static",
    ),
    Headline("OTD: what CPU use gains on even placement, as a share of that", "otd", "where both have settled"),
    Headline(
        "Linear Road: part of the cost that alternates cut under `ce`, hosts and rates varying, the worst rate",
        "reactive",
        "alternates cut CE's cost, the least",
    ),
    Headline(
        "looking ahead (`plasticc`), over reacting: profit gained, as a part of it", "lookahead", "profit above CAF's"
    ),
    Headline(
        "forecasts by the method that is learned to suit (synthetic readings): mean error over the best single method's",
        "dynamic-dataflow",
        "over the best single",
    ),
    Headline(
        "the same: hours in which the best method is picked, the worst fold", "dynamic-dataflow", "best method picked"
    ),
    Headline(
        "a round of 10,000 guards over 1,000 signals, over the same conditions as plain Python functions, the worst case",
        "guards",
        "over the plain functions",
    ),
    Headline(
        "the same round where one signal changed, over one where all did, the worst case", "guards", "one signal changed"
    ),
)
"""Most of these are bars that are reached; bars that are missed are among them."""

BEGIN, END = "<!-- figures: written by `make figures` -->", "<!-- end of figures -->"
WITHIN = re.compile(r"(<!-- figures of ([\w-]+): written by `make figures` -->).*?" + re.escape(END), re.DOTALL)
"""What is between marks in other pages than these two: the bars of the file that the first mark names."""

INTRODUCTION = """# Figures

<!-- Written by `make figures` from docs/figures/*.json: edit neither this page nor the files by hand. -->

Every figure is printed anew by the command above it; [what each measures](how-to/benchmarks.md). A bar is *held*,
*missed*, or *undecided* where runs scatter and too few were made: of the runs of a ratio at least five must agree. What
follows a heading is of one origin: measured on Spark, simulated, or the time that planning alone takes. A figure marked
*earlier measurement* was taken down from a page before files were kept, and is replaced when its command is run with
`--json docs/figures/NAME.json`.
"""


def page() -> str:
    """The page that the files give."""
    parts, origin = [INTRODUCTION], ""
    unknown = {file.stem for file in (DOCS / "figures").glob("*.json")} - {source.file for source in SOURCES}
    if unknown:
        raise SystemExit(f"figures: SOURCES says nothing about {', '.join(sorted(unknown))}")
    for source in SOURCES:
        file = DOCS / "figures" / f"{source.file}.json"
        if not file.exists():
            continue
        if source.plant != origin:
            parts.append(f"## {source.plant[0].upper()}{source.plant[1:]}\n")
            origin = source.plant
        parts.append("\n".join(section(source, json.loads(file.read_text(encoding="utf-8")))))
    return "\n".join(parts)


def section(source: Source, found: Mapping[str, Any]) -> Iterator[str]:
    """A heading, what was measured on, bars, and figures without one."""
    about = found["environment"]
    yield f"### {source.title}\n"
    yield f"    {about.get('command', source.command)}\n"
    marked = "*Earlier measurement*, " if about.get("earlier") else ""
    took = f", took {about['minutes']:g} min" if "minutes" in about else ""
    yield f"{marked}{about['date']}; {conditions(found)}{took}." + (
        f" [What it means]({source.read})." if source.read else ""
    )
    if summary := found.get("summary"):
        yield f"\n{capital(summary)}"
    if found["checks"]:
        yield ""
        yield from bars(found)
    if plain := {name: text for name, value in found["figures"].items() if (text := shown(value))}:
        yield "\n| figure | |\n| --- | --- |"
        for name, text in plain.items():
            yield row(name.replace("_", " "), text)
    yield ""


def bars(found: Mapping[str, Any]) -> Iterator[str]:
    """The table of a file's bars."""
    yield "| bar | figure | bound | verdict | bound from |\n| --- | --- | --- | --- | --- |"
    for check in found["checks"]:
        verdict = check["verdict"] if check["verdict"] == "held" else f"**{check['verdict']}**"
        yield row(check["name"], shown(check["value"]), check["bound"], verdict, check["source"])


def filled(text: str) -> str:
    """The text of a page, with the bars of the files that it names between marks."""

    def block(marks: re.Match[str]) -> str:
        found = json.loads((DOCS / "figures" / f"{marks[2]}.json").read_text(encoding="utf-8"))
        about = found["environment"]
        lines = [f"`{about['command']}`, {about['date']}; {conditions(found)}:", "", *bars(found)]
        return "\n".join([marks[1], "", *lines, "", END])

    return WITHIN.sub(block, text)


def beside_spark() -> list[str]:
    """The README's first figure: one job, five ways; nothing where it was not measured."""
    file = DOCS / "figures" / "against-spark.json"
    if not file.exists():
        return []
    found = json.loads(file.read_text(encoding="utf-8"))
    figures, about = found["figures"], found["environment"]
    measured = f"One job with state, {about['rates']}, on {about['hosts']}, measured on Spark ({conditions(found)}); "
    lines = [
        "",
        f"{measured}medians, and what the rounds spread over:",
        "",
        row("one job, five ways", *MEASURED),
        row(*["---"] * (1 + len(MEASURED))),
    ]
    for name, says in WAYS.items():
        lines.append(row(says, *(spread(figures.get(f"{name}: {what}"), what == "in time") for what in MEASURED)))
    return lines


def spread(value: Any, share: bool) -> str:
    """A median with the range of its rounds; share: as percentages."""
    median, runs = (value["median"], value["runs"]) if isinstance(value, Mapping) else (value, [])
    if median is None:
        return ""

    def one(number: float) -> str:
        return f"{number:.1%}" if share else f"{number:,.3g}"

    return f"{one(median)} ({one(min(runs))} to {one(max(runs))})" if len(set(runs)) > 1 else one(median)


def headlines() -> str:
    """The README's figures: one job beside open-source Spark, then a table for each origin."""
    by_file = {source.file: source for source in SOURCES}
    lines: list[str] = beside_spark()
    origin = ""
    for headline in HEADLINES:
        source = by_file[headline.file]
        file = DOCS / "figures" / f"{source.file}.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"checks": []}
        checks = [check for check in found["checks"] if headline.bar in check["name"]]
        if not checks:  # not measured yet, or by an earlier form of its command
            continue
        check = min(checks, key=badness)
        if source.plant != origin:
            lines += ["", f"| {source.plant} | figure | bar | conditions |", "| --- | --- | --- | --- |"]
            origin = source.plant
        verdict = check["verdict"] if check["verdict"] == "held" else f"**{check['verdict']}**"
        lines.append(row(headline.says, shown(check["value"]), f"{check['bound']}: {verdict}", conditions(found)))
    return "\n".join([BEGIN, *lines, "", END])


def badness(check: Mapping[str, Any]) -> tuple[int, float]:
    """Orders bars, the worst first: by verdict, then by figure."""
    value = check["value"] if isinstance(check["value"], int | float) else 0.0
    worse = value if check["bound"].startswith(">") else -value
    return ("missed", "undecided", "held").index(check["verdict"]), worse


def conditions(found: Mapping[str, Any]) -> str:
    """What a figure was taken on, in a line."""
    about = found["environment"]
    return ", ".join(text for text in (f"{about['cores']} cores", load(about), about.get("conditions", "")) if text)


def readme() -> str:
    """The README with the figures that the files give."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    return before + headlines() + rest.split(END)[1]


def pages() -> dict[Path, str]:
    """The other pages that have figures in them, as the files give them."""
    texts = {file: file.read_text(encoding="utf-8") for file in sorted(DOCS.rglob("*.md")) if file != PAGE}
    return {file: filled(text) for file, text in texts.items() if WITHIN.search(text)}


def load(about: Mapping[str, Any]) -> str:
    """How busy the machine was when measuring began, where that was written down."""
    return f"load {about['load']:g} at the start" if "load" in about else ""


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def capital(text: str) -> str:
    """A sentence of it."""
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def shown(value: Any) -> str:
    """A figure as people read it; nothing for what is no single figure."""
    match value:
        case bool() | None:
            return ""
        case float():
            return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case str():
            return value
        case {"median": median, "runs": [_, _, *_] as runs}:
            return f"{shown(median)} ({len(runs)} runs, {shown(min(runs))} to {shown(max(runs))})"
    return ""


def commands(names: Sequence[str]) -> list[str]:
    """What measures the figures of these files, or of all; those of recorded runs need a recording and are left out."""
    if unknown := set(names) - {source.file for source in SOURCES}:
        raise SystemExit(f"figures: there is no {', '.join(sorted(unknown))} in SOURCES")
    wanted = [source for source in SOURCES if source.file in names or not names]
    return [f"{each.command} --json docs/figures/{each.file}.json" for each in wanted if "RUN" not in each.command]


def main(arguments: list[str]) -> int:
    """Write the page, or check it; the exit status."""
    if arguments[:1] == ["--commands"]:
        print("\n".join(commands(arguments[1:])))
        return 0
    written = {PAGE: page(), README: readme(), **pages()}
    if arguments == ["--check"]:
        stale = [file.name for file, text in written.items() if not file.exists() or file.read_text("utf-8") != text]
        for name in stale:
            print(f"{name} is not what docs/figures/*.json give: run make figures", file=sys.stderr)
        return int(bool(stale))
    for file, text in written.items():
        file.write_text(text, encoding="utf-8")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
