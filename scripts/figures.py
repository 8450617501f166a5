"""Write docs/figures.md and the README's table from docs/figures/*.json, which measuring commands wrote with `--json`.

    python scripts/figures.py           # `make figures`: write the pages
    python scripts/figures.py --check   # exit with status 1 if a page differs from the files
    python scripts/figures.py --commands [NAME ...]   # print the measuring commands, one a line, for `make measure`

This script measures nothing. Each check of each file belongs to exactly one row of the page, so no miss can drop out.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "figures.md"
README = DOCS.parent / "README.md"

COMMANDS = {
    "against-spark": "python benchmarks/against_spark.py",
    "demo": "python benchmarks/demo.py",
    "reaction": "python benchmarks/reaction.py",
    "start": "python benchmarks/start.py",
    "one-core": "python benchmarks/one_core.py",
    "release": "python benchmarks/release.py",
    "autopilot-growth": "python benchmarks/autopilot.py --part growth",
    "autopilot-live-skew": "python benchmarks/autopilot.py --part live-skew",
    "yarn-release": "python benchmarks/yarn.py --part release",
    "overhead": "python benchmarks/overhead.py",
    "yarn-overhead": "python benchmarks/yarn.py --part overhead",
    "autopilot-cost": "python benchmarks/autopilot.py --part cost",
    "fusion": "python benchmarks/fusion.py",
    "dynamic": "python benchmarks/dynamic.py",
    "closed": "python benchmarks/closed.py",
    "switching": "python benchmarks/switching.py",
    "switching-updates": "python benchmarks/switching.py --part updates",
    "churn": "python benchmarks/churn.py",
    "nexmark": "python benchmarks/nexmark.py --part quick",
    "faults-spark": "python benchmarks/faults.py --spark",
    "soak": "python benchmarks/soak.py",
    "nstorm": "elastream experiment nstorm",
    "nstorm-figures": "elastream experiment nstorm --part figures",
    "nstorm-full": "elastream experiment nstorm --full",
    "resilience-spark-kills": "elastream experiment resilience --plant spark --part kills",
    "resilience-spark-moves": "elastream experiment resilience --plant spark --part moves",
    "resilience-spark-checkpoints": "elastream experiment resilience --plant spark --part checkpoints",
    "resilience-spark-throughput": "elastream experiment resilience --plant spark --part throughput",
    "resilience-spark-skew": "elastream experiment resilience --plant spark --part skew",
    "recovery": "python benchmarks/recovery.py",
    "state-notice": "python benchmarks/state.py --part notice",
    "state-observed": "python benchmarks/state.py --part observed",
    "state-first": "python benchmarks/state.py --part first",
    "state-rocksdb": "python benchmarks/state.py --part rocksdb",
    "state-heap": "python benchmarks/state.py --part heap",
    "visp-spark": "elastream experiment visp --plant spark",
    "e2df-spark": "elastream experiment e2df --plant spark",
    "otd-spark": "elastream experiment otd --plant spark",
    "elastic-allocator-spark": "elastream experiment elastic-allocator --plant spark",
    "dynamic-dataflow-spark": "elastream experiment dynamic-dataflow --plant spark",
    "linear-road-spark": "python benchmarks/linear_road_on_spark.py",
    "visp": "elastream experiment visp --sensitivity",
    "e2df": "elastream experiment e2df --sensitivity",
    "otd": "elastream experiment otd --sensitivity",
    "elastic-allocator": "elastream experiment elastic-allocator --sensitivity",
    "dynamic-dataflow": "elastream experiment dynamic-dataflow",
    "reactive": "elastream experiment reactive",
    "lookahead": "elastream experiment lookahead",
    "resilience": "elastream experiment resilience",
    "promise": "python benchmarks/promise.py",
    "liveness": "python benchmarks/liveness.py",
    "faults": "python benchmarks/faults.py --simulated",
    "autopilot-skew": "python benchmarks/autopilot.py --part skew",
    "drift": "python benchmarks/drift.py",
    "simulator": "python benchmarks/simulator.py",
    "hierarchy": "python benchmarks/hierarchy.py",
    "ring": "python benchmarks/ring.py",
    "placement": "python benchmarks/placement.py",
    "guards": "python benchmarks/guards.py",
    "value-cost": "python benchmarks/value_cost.py",
    "freshness": "python benchmarks/freshness.py",
    "freshness-hour": "python benchmarks/freshness.py --part hour",
}
"""Command that measures each file of figures, by the file's stem."""


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        files: Stems of the files whose checks the row shows, separated by spaces.
        label: The bar, in words.
        match: Regular expression, searched in the checks' names. Empty: all checks of the files.
        reason: Clause that explains a miss. Shown only while a check is missed or refuted.
        runs: Keys that lead to the runs in the file, or a text where the file does not record them.
    """

    files: str
    label: str
    match: str = ""
    reason: str = ""
    runs: tuple[str, ...] | str = ("environment", "runs")


@dataclass(frozen=True)
class Area:
    """A section of the page with one table. All its figures have one origin."""

    title: str
    note: str
    rows: tuple[Row, ...]


SCENARIOS = ("figures", "scenarios", "static")
ARMS = ("figures", "fixed at the peak: in time", "runs")
EACH = "per check"
"""Runs that the check's own text names, such as "10 blocks"."""
KILLS, CHECKPOINTS = "resilience-spark-kills", "resilience-spark-checkpoints"

AREAS = (
    Area("Against plain PySpark", "On Spark, target latency 5 s, in random order.", (
        Row("against-spark", "points in time behind the peak, dataflow; Autopilot", "below|: in time", runs=ARMS),
        Row("against-spark", "host time over the peak's", "over that|over the fixed", runs=ARMS),
        Row("against-spark", "points in time ahead of dynamic allocation", "above", runs=ARMS),
        Row("against-spark", "host time over dynamic allocation's", "over dyn", runs=ARMS),
        Row("against-spark", "results exact", "exact", runs=ARMS),
        Row("autopilot-growth", "batch time on four executors, over Spark alone", runs="3"),
    )),
    Area("Following the load", "On Spark; local hosts of 0.35 to 1 core.", (
        Row("demo", "share of time; of records within 3 s", "target", runs=("figures", "cost", "runs")),
        Row("demo", "cost over a fixed peak's", "cost", runs=("figures", "cost", "runs")),
        Row("reaction", "seconds to recover from eightfold load, warm; cold",
            runs=("figures", "warmed: recovered, s after the step", "runs")),
        Row("start", "host start over unoptimised: time; CPU; longest batch meanwhile",
            runs=("figures", "first task, now over before", "ratio", "runs")),
        Row("one-core", "late JIT over default: time to work; records/s, minute 1; 3; over first tier",
            runs="1"),
        Row("release", "longest batch over median, by release; counts exact", runs="4"),
        Row("yarn-release", "longest batch while an executor leaves, over without", runs=("figures", "release",
            "ratios")),
        Row("autopilot-live-skew", "busiest executor over best packing", runs="1"),
    )),
    Area("What features cost", "On Spark, both sides in turn.", (
        Row("overhead", "throughput, dataflow over plain PySpark", runs="few"),
        Row("yarn-overhead", "records/s, with Autopilot over without", runs=("figures", "overhead", "ratio", "runs")),
        Row("autopilot-cost", "Autopilot's cores, 10 queries of 200 partitions", runs="1"),
        Row("fusion", "throughput over unions, small; large batches", runs=("figures", "rounds")),
        Row("dynamic", "CPU a record over fixed, alternates; three dataflows", "alternates",
            runs=("figures", "readings, alternates", "ratio", "runs")),
        Row("dynamic", "the same, key table", "key table", runs=("figures", "readings, key table", "ratio", "runs")),
        Row("closed", "first batch authenticated; encrypted over open; later batches likewise",
            runs=("figures", "seconds to the first batch", "open")),
    )),
    Area("Exact results under switches and faults", "On Spark, beside plain Python.", (
        Row("switching switching-updates", "batches mixed, wrong, unseen, replayed differently; late switches",
            "differ|saw|another|mixed|replays|more than 2", runs="1"),
        Row("switching switching-updates", "switches, by consistency mode", "switches$", runs="1"),
        Row("switching switching-updates", "executors killed, queries restarted", "killed|failed", runs="1"),
        Row("churn", "random events; restarts; wrong counts", runs="1"),
        Row("nexmark", "queries right; seconds in all", runs="1"),
        Row("faults-spark", "rules broken; unexplained driver starts; faults; minutes", runs="1"),
        Row("soak", "CPU, disk, files, memory: last tenth over first", "last tenth", runs="1"),
        Row("soak", "wrong rows, lost records, restarts", "wrong|not read|starts", runs="1"),
        Row("soak", "batches on Spark", "batches", runs="1"),
    )),
    Area("Moving and recovering state",
         "On Spark, three or four local hosts: [N-Storm](explanation/nstorm.md), "
         "[resilient state](explanation/resilient-state.md).", (
        Row("nstorm", "throughput lost, restart less all at once, 1; 7; 16 of 16 tasks",
            "lost.*restart.*all at once", runs=EACH),
        Row("nstorm", "throughput lost, restart less lazy", "lost.*restart.*lazy", runs=EACH),
        Row("nstorm", "longest pause, restart less all at once", "longest.*all at once", runs=EACH),
        Row("nstorm", "longest pause, restart less lazy", "longest.*lazy", runs=EACH),
        Row("nstorm", "throughput lost, all at once less lazy", "that of online, all at once less", runs=EACH),
        Row("nstorm-full", "moves with state loaded ahead, 70 % load", "ahead", runs="10"),
        Row("nstorm-figures", "seconds degraded by 60 %, over other schemes'", "seconds at", runs="1"),
        Row("nstorm-figures", "records, over other schemes'", "^records", runs="1"),
        Row(KILLS, "seconds from kill to normal batch; 1; 2 hosts", "to a batch as before", runs="10"),
        Row(KILLS, "seconds more a host", "s more", runs="10"),
        Row(KILLS, "seconds to first batch, idle host", "idle", "state loads on one core",
            ("figures", "seconds to the first batch on a new host", "idle")),
        Row(CHECKPOINTS, "checkpoint over state at 2 s; grows", "at 2 s|grows",
            "many new words", "1"),
        Row("resilience-spark-throughput", "records/s with one; two standby replicas, over none", "records/s",
            runs=("figures", "records a second", "r = 0")),
        Row("resilience-spark-skew", "batches until skew is balanced", "batches", runs=("figures",
            "batches until balanced")),
        Row("recovery", "recovery with standby replica over without; over restart", "over",
            "the repeated batch outweighs state", "5"),
        Row("state-notice", "longest batch around a notice, over median", "", "collections take as long undisturbed",
            "2"),
        Row("state-observed", "observing bytes: time; records/s over without", runs="10"),
        Row("state-first", "first batch's bytes, largest over mean", runs="5"),
        Row("state-rocksdb state-heap", "moves predicted within 25 %", runs="6"),
        Row(f"nstorm nstorm-figures {KILLS} resilience-spark-moves {CHECKPOINTS} resilience-spark-throughput "
            "resilience-spark-skew recovery", "wrong counts, restarts, failed parts", "counts|restarts$|parts", runs="all"),
    )),
    Area("The papers' policies on Spark",
         "Hosts of 0.3 to 0.4 cores; the first three predate published rules.", (
        Row("visp-spark", "compliance above the baseline's, points", "compliance",
            "batches report late, queues early", ("figures", "pairs")),
        Row("visp-spark", "cost below the baseline's", "cost", "late leases cause penalties", ("figures", "pairs")),
        Row("visp-spark", "early releases; results; restarts", "early|results|restarts", runs="6"),
        Row("e2df-spark", "instances saved, application; both levels", "replicas",
            "it starts on all five hosts", SCENARIOS),
        Row("e2df-spark", "host time saved, both levels", "host time", "this load keeps hosts busy", SCENARIOS),
        Row("e2df-spark", "latency over static's, application; both levels", "latency", runs=SCENARIOS),
        Row("e2df-spark", "restarts; counts", "restarts|counts", runs=SCENARIOS),
        Row("otd-spark", "traffic against even's, communication; computation", "between",
            "one move, chosen for relief", "1"),
        Row("otd-spark", "CPU use, against even", "CPU", runs="1"),
        Row("otd-spark elastic-allocator-spark", "moves refused", "refused", runs="2"),
        Row("otd-spark elastic-allocator-spark", "tasks where planned", "planned", runs="5"),
        Row("elastic-allocator-spark", "CPU deviation; mean, against even; random", "CPU", runs="5"),
        Row("linear-road-spark", "relative throughput, fourfold step", "relative", runs="1"),
        Row("linear-road-spark", "alternates first; host leased; lost cores noticed", "^runs", "alternates sufficed",
            "1"),
        Row("linear-road-spark", "restarts, wrong rows", "again|rows", runs="1"),
    )),
    Area("Four papers, simulated",
         "Runs share seeds. [VISP](explanation/visp.md), [E2DF](explanation/e2df.md), "
         "[OTD](explanation/otd.md), [Elastic Allocator](explanation/elastic-allocator.md).", (
        Row("visp", "compliance rises: threshold, BTUs", "compliance orders"),
        Row("visp", "compliance off the printed, points", "compliance of"),
        Row("visp", "cost off the printed, %: BTU; baseline", "resource cost", "instances grow less"),
        Row("visp", "BTU60's cost below the threshold's", "total cost", "likewise"),
        Row("visp", "early releases: BTU policies; threshold", "releases of"),
        Row("visp", "scaling actions fall", "actions"),
        Row("e2df", "saved: instances, twice; hosts", "below static", "static provision exceeds thresholds"),
        Row("e2df", "latency over static's", "over static's", "no messaging of Storm"),
        Row("e2df", "slow hosts: host time saved; latency; against the fewest", "second level",
            "hindsight"),
        Row("e2df", "four slots: drains; cancels; moves; releases", "4 slots"),
        Row("otd", "communication: traffic; throughput; answer time gained", "^communication-intensive, 2 nodes x 4:",
            "only hops count"),
        Row("otd", "computation: CPU, settled; mean; throughput; traffic", "^computation-intensive, 2 nodes x 4:",
            "Algorithm 1 ignores load"),
        Row("otd", "2 to 16 nodes: more throughput, less traffic", " / "),
        Row("elastic-allocator", "CPU; link deviation over baselines'", "^CPU deviation|^link deviation",
            "Algorithm 1 never looks back"),
        Row("elastic-allocator", "CPU use no lower; higher; links likewise", " rate (lower|higher)",
            "equal without full hosts"),
        Row("elastic-allocator", "CPU use over even's, no host full; hosts full", "sweep"),
        Row("elastic-allocator", "search over exact; most tasks a host", "search|tasks on"),
    )),
    Area("The thesis, simulated", "`reactive`, `lookahead` are older than their bars. "
         "`dynamic-dataflow` has synthetic readings. "
         "[demand](explanation/demand-response.md), [value](explanation/value-against-cost.md), "
         "[look-ahead](explanation/look-ahead.md), [resilient state](explanation/resilient-state.md).", (
        Row("dynamic-dataflow", "best method picked; deviation (Eq. 3.2)", "picked|deviation",
            "methods tie"),
        Row("dynamic-dataflow", "error over best single method's; random choice's", "MAPE"),
        Row("reactive", "static plan's throughput, nothing; hosts; rates; both vary", "(least|highest) throughput$"),
        Row("reactive", "static throughput off the printed, nothing; hosts; rates; both vary", "Eq. 4.4 off"),
        Row("reactive", "the same without backlog", "waits off"),
        Row("reactive", "profit of BR, GA, CE, SH; GA over BR", "static.*profit"),
        Row("reactive", "lowest throughput, GA; CE; SH", "adapted by"),
        Row("reactive", "GA's profit above CE's", "GA's profit above"),
        Row("reactive", "CE's profit over GA's", "CE's profit over"),
        Row("reactive", "adapted profit off the printed", "^adapted, "),
        Row("reactive", "CE's profit above SH's", "CE's profit above"),
        Row("reactive", "CE's planning CPU at tenfold rate; R² of cores", "planning"),
        Row("reactive", "cost cut by alternates, least; most", "cut"),
        Row("reactive", "profit by alternates, CE; our CE", "raise"),
        Row("lookahead", "lowest throughput, PLAStiCC; others", "least throughput"),
        Row("lookahead", "PLAStiCC's profit above the next; above CAF; growth with horizon",
            "best of the others|above CAF|grows",
            "hourly billing caps gains"),
        Row("lookahead", "χ below others'; profit falls with error; above WPA, WPO, WPP; WPA flatter",
            "chi below|falls with|small errors|flat"),
        Row("lookahead", "PLAStiCC's profit above that of `ce` without forecasts", "that of ce"),
        Row("lookahead", "best horizon under large errors", "horizon of"),
        Row("lookahead", "WPO above WPA; WPP lowest", "WPO above|WPP below", "wrong predictions cost little"),
        Row("resilience", "throughput lost, r = 0 to 2, least; most", "throughput lost"),
        Row("resilience", "r = 1 over external state; R²; external growth", r"external|R\^2"),
        Row("resilience", "seconds to balance skew", "balance"),
        Row("resilience", "seconds to scale out", "scale-out: seconds"),
        Row("resilience", "tuples lost, scaling out; 9 of 12 hosts; r + 1 neighbours", "lost, up|lost$|in a row"),
        Row("resilience", "seconds to move an interval, least; most", "median, "),
        Row("resilience", "growth by interval; by rate", "moved interval: grows"),
        Row("resilience", "checkpoint over state at 2 s; grows", "checkpoint"),
        Row("resilience", "seconds to recover", "failures, the"),
        Row("resilience", "ms more a failure", "slope"),
    )),
    Area("`threshold` and the control plane, simulated", "`promise`: generated loads, a World Cup day, target 30 s.", (
        Row("promise", "records in time", "in time", runs="24"),
        Row("promise", "by the second: hosts over the work's", "hosts over",
            "World Cup's bursts", "12"),
        Row("promise", "by the hour: early releases a lease", "early", runs="12"),
        Row("promise", "by the hour: cost over a fixed peak's", "cost", runs="12"),
        Row("liveness", "random cases; silent overloaded rounds; metric unknown; other broken", "",
            "mostly `btu`", ("figures", "cases")),
        Row("faults", "schedules breaking rules; faults; minutes; planted defects caught",
            "", "beside others", ("figures", "seeds")),
        Row("autopilot-skew", "busiest executor over best packing", runs="60"),
        Row("freshness freshness-hour", "records within 10 min", "records", runs="10, 1"),
        Row("freshness freshness-hour", "cost over staying", "cost", runs="10, 1"),
    )),
    Area("The simulator beside Spark", "Spark runs predicted by others' constants: within 20%, or "
         "their spread ([how](explanation/simulator.md#calibrated-with-a-run-on-spark)).", (
        Row("drift", "median latency", "p50", "cold starts bias constants", "29"),
        Row("drift", "99th percentile of latency", "p99", "likewise", "29"),
        Row("drift", "mean backlog", "backlog", "one pair short", "29"),
        Row("drift", "host time", "host time", runs="29"),
    )),
    Area("Speed of planning and simulation", "One process, compiled.", (
        Row("simulator", "CPU seconds a day, 20 hosts, chained; unchained", "simulated day", runs="1"),
        Row("simulator", "chained: 2 million records/s over 2,000; varying hosts over steady; unchained likewise",
            "2 million|vary", runs="1"),
        Row("simulator", "seconds: VISP's busiest load; 48 runs; 10,000 hosts for a day", "busiest|48 runs|10,000",
            runs="1"),
        Row("hierarchy placement", "CPU seconds a round: 1,000 E2DF regions; OTD; greedy, 2,000 hosts", runs="1"),
        Row("ring", "a million lookups over a modulo, 4 to 1,024 hosts", runs=("figures", "4 hosts", "ratio", "runs")),
        Row("guards", "ms a round, 100 guards over 50 signals: values; means; persistence, order",
            runs=("figures", "values", "ms a round", "runs")),
        Row("value-cost", "CE at tenfold rate; CE over GA; GA over ten boxes; PLAStiCC over CE",
            "CE|boxes", runs=("figures", "growth of ce", "ratio", "runs")),
        Row("value-cost", "Eqs. 4.4 to 4.7 beside a loop: difference; time", "Eqs", runs="5"),
    )),
)  # fmt: skip

WAYS = {
    "fixed at the peak": "plain PySpark, fixed at the peak",
    "fixed at the mean": "plain PySpark, fixed at the mean",
    "dynamic allocation": "plain PySpark, dynamic allocation",
    "Autopilot": "plain PySpark with Autopilot",
    "dataflow": "the same as a dataflow",
    "fixed, 4 hosts": "plain PySpark, four hosts",
    "fixed, 3 hosts": "plain PySpark, three hosts",
    "Autopilot, threshold": "plain PySpark with Autopilot, `threshold`",
    "Autopilot, horizon": "plain PySpark with Autopilot, `horizon`",
    "dataflow, threshold": "the same as a dataflow, `threshold`",
    "dataflow, horizon": "the same as a dataflow, `horizon`",
}
"""Rows of the comparison with plain PySpark, by their names in the file; the first five are those of 2026-11-22."""
COLUMNS = ("in time", "host-seconds", "longest batch, s")

SHORT = (
    (r"^(the plants take|conservation of work|what they would show|ours: ).*", ""),
    (r"section ", "§"),
    (r": (less in both|lowest deviation|draining, its|all reach|linear|lowest at every|SH below|D1, D2|slots).*", ""),
    (r': "the number of active.*', ": 24 %"),
    (r"(Figure|Fig\.) (\S+), p\. \d+", r"\1 \2"),
    (r", Figure \S+(?=: )", ""),
    (r"p\. (\d+); Fig\. \S+", r"p. \1"),
    (r": (from 51 to 77 % in 50 s|kept at 75 % as the load changes)", ""),
    (r": 19.3 ms against 11.4 ms|: up to 20 %", ""),
    (r"paper, §?(?=\d)", "§"),
    (r"paper, (?=[§FT]|discussion)", ""),
    (r"paper: (.*) \((Table \d)\)", r"\2: \1"),
    (r"paper's (?=Table)|: n r .*", ""),
    (r"below 20 % after 250 s", "20 %"),
    (r": 1,200 to 1,500 ms.*", ""),
    (r"(?<=\d)( %)? to (?=\d)", "–"),
    (r"(§5\.3\.\d): [\d–]+ ?%", r"\1"),
    (r"(§5\.3\.3), Figure \d+", r"\1"),
    (r" %", "%"),
    (r" / ", "/"),
    (r"below a second", "<1 s"),
    (r"; exact here|, 20 min|the claim of | that can be true|paper's discussion of ", ""),
)
"""Shorter forms of sources."""

BEGIN, END = "<!-- figures: written by `make figures` -->", "<!-- end of figures -->"

INTRODUCTION = """# Figures

<!-- Written by `make figures` from docs/figures/*.json. Do not edit. -->

All bars, measured on 2 cores.
`make measure FIGURES="demo"` repeats rows of `demo` ([commands](how-to/benchmarks.md)). Targets without a source are ours.
*Undecided*: too few runs agree, or the interval contains the target.
In brackets: load average above the cores; *old* ones predate the files.
"""


def page() -> str:
    """Return the text of docs/figures.md."""
    files = measured()
    if unknown := files.keys() - COMMANDS.keys():
        raise SystemExit(f"figures: COMMANDS lacks {', '.join(sorted(unknown))}")
    parts, rest = [INTRODUCTION], {(file, check["name"]) for file, each in files.items() for check in each["checks"]}
    for area in AREAS:
        parts += [f"## {area.title}\n", area.note, conditions(area, files), ""]
        if area is AREAS[0]:
            parts += [*comparison(files), ""]
        parts.append("bar | target | ours | verdict | runs\n---|---|---|---|---")
        for each in area.rows:
            checks = checks_of(each, files)
            if double := {(file, check["name"]) for file, check in checks} - rest:
                raise SystemExit(f"figures: two rows show {sorted(double)}")
            rest -= {(file, check["name"]) for file, check in checks}
            if checks:
                parts.append(cells(each, checks, files))
        parts.append("")
    if rest:
        raise SystemExit(f"figures: no row shows {sorted(rest)}")
    return "\n".join(parts)


def measured() -> dict[str, Any]:
    """Return the contents of the files of figures by their stems."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((DOCS / "figures").glob("*.json"))}


def checks_of(row: Row, files: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the checks that a row shows, each with its file's stem."""
    present = [file for file in row.files.split() if file in files]
    return [(file, check) for file in present for check in files[file]["checks"] if re.search(row.match, check["name"])]


def cells(row: Row, checks: Sequence[tuple[str, Any]], files: Mapping[str, Any]) -> str:
    """Return a row of a table in Markdown."""
    each = [check for _, check in checks]
    bounds = [bound(check["bound"]) for check in each]
    verdicts = [check["verdict"] if check["verdict"] == "held" else f"**{check['verdict']}**" for check in each]
    if row.reason:
        verdicts = [f"{each} ({row.reason})" if each in ("**missed**", "**refuted**") else each for each in verdicts]
    singly = len(each) <= 3 or (len(each) == 4 and max(len(set(bounds)), len(set(verdicts))) > 1)
    sources = dict.fromkeys(filter(None, (source(check["source"]) for check in each)))
    target = "; ".join([listed(bounds, singly), *sources])
    counted = "; ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in sorted(set(verdicts)))
    names = dict.fromkeys(re.sub(r"(resilience-spark)-.*", r"\1-*", file) if len(each) > 7 else file for file, _ in checks)
    label = f"{', '.join(f'`{name}`' for name in names)}: {row.label}"
    verdict = re.sub(
        r"(\*\*(?:missed|refuted)\*\*) \([^)]*\)(?=.*\1)", r"\1", listed(verdicts, True) if singly else counted
    )
    return " | ".join(
        [label, target, values([check["value"] for check in each], singly), verdict, runs(row, each[0], files)]
    )


def listed(texts: Sequence[str], singly: bool) -> str:
    """Return one text for equal ones; else all in order, or without repetitions if not `singly`."""
    different = list(dict.fromkeys(texts))
    return "; ".join(texts if singly and len(different) > 1 else different)


def runs(row: Row, check: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Return the number of runs behind a row."""
    if row.runs == EACH:
        return re.search(r"(\d+) blocks", check["value"])[1]  # type: ignore[index]
    if isinstance(row.runs, str):
        return row.runs
    value: Any = files[row.files.split()[0]]
    for key in row.runs:
        value = value[key]
    return f"{len(value) if isinstance(value, list) else round(value):,}"


def values(each: Sequence[Any], singly: bool) -> str:
    """Return the values in order, or their range if not `singly`; the first of several that are no numbers."""
    texts = [shown(value) for value in each]
    if singly or len(set(texts)) <= 2:
        return listed(texts, singly)
    numbers = [number for value in each if (number := leading(value)) is not None]
    return f"e.g. {texts[0]}" if len(numbers) < len(each) else f"{shown(min(numbers))}–{shown(max(numbers))}"


def leading(value: Any) -> float | None:
    """Return the number that a value begins with; None for an enumeration or another text."""
    if isinstance(value, int | float):
        return float(value)
    match = re.match(r"(?:at (?:most|least) )?(-?[\d.,]+)(?!\S* /)", str(value))
    return float(match[1].replace(",", "")) if match else None


def bound(text: str) -> str:
    """Return a bound with signs that people read."""
    text = text.replace(">=", "≥").replace("<=", "≤")
    text = text.replace("below even's", "<").replace("above even's", ">").replace("below", "<").replace("above", ">")
    return re.sub(r"^([≥≤<>]) ", r"\1", re.sub(r"(?<=\d) to (?=\d)", "–", text)).removesuffix(" s")


def source(text: str) -> str:
    """Return where a bound comes from, short; an empty text for the project's own."""
    text = re.sub(r"^our bar, from the ", "", text)
    text = re.sub(
        r"^(our bar|the project's bar|project's bar|ours:|this benchmark)[^;]*(; compilation apart|; |$)", "", text
    )
    for long, short in SHORT:
        text = re.sub(long, short, text)
    return text


def conditions(area: Area, files: Mapping[str, Any]) -> str:
    """Return when and under which load each file of an area was measured."""
    stems = dict.fromkeys(stem for row in area.rows for stem in row.files.split() if stem in files)
    about = {stem: condition(files[stem]["environment"]) for stem in stems}
    days = dict.fromkeys(day for day, _ in about.values())
    each = (
        f"{day} " + ", ".join(f"`{stem}`{rest}" for stem, (on, rest) in about.items() if on == day) for day in sorted(days)
    )
    return f"{'; '.join(each)}."


def condition(about: Mapping[str, Any]) -> tuple[str, str]:
    """Return the day of a measurement, and what was particular about it in brackets."""
    rest = ["quick"] if "--quick" in about["command"] else []
    rest += ["old"] if about.get("earlier") else [f"{load:.1f}"] if (load := about.get("load", 0)) > about["cores"] else []
    return about["date"], f" ({', '.join(rest)})" if rest else ""


def comparison(files: Mapping[str, Any]) -> list[str]:
    """Return the table of one job run in several ways, or nothing if it was not measured."""
    if "against-spark" not in files:
        return []
    figures, about = files["against-spark"]["figures"], files["against-spark"]["environment"]
    said = f"One job with state, {about['rates']}; hosts: {about['hosts']}; medians and ranges:"
    lines = [said, "", " | ".join(["one job", *COLUMNS]), "|".join(["---"] * (1 + len(COLUMNS)))]
    measured_ways = [name for name in WAYS if f"{name}: in time" in figures]
    return [*lines, *(way(name, figures) for name in measured_ways)]


def way(name: str, figures: Mapping[str, Any]) -> str:
    """Return the row of a way."""
    return " | ".join([WAYS[name], *(spread(figures.get(f"{name}: {what}"), what == "in time") for what in COLUMNS)])


def spread(value: Any, share: bool) -> str:
    """Return a median with the range of its rounds, as percentages if `share`."""
    median, rounds = (value["median"], value["runs"]) if isinstance(value, Mapping) else (value, [])
    if median is None:
        return ""

    def one(number: float) -> str:
        return f"{number:.1%}" if share else f"{number:,.3g}"

    low, high = one(min(rounds, default=median)), one(max(rounds, default=median))
    return one(median) if low == high else f"{one(median)} ({low}–{high})"


def readme() -> str:
    """Return the README with the comparison with plain PySpark between its marks."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    return before + "\n".join([BEGIN, "", *comparison(measured()), "", END]) + rest.split(END)[1]


def shown(value: Any) -> str:
    """Return a value as text of at most four significant digits."""
    match value:
        case float():
            return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
    text = re.sub(r", \d+ blocks; power[^)]*|^at (most|least) | s(?= \()| \(in all of \d+ runs\)", "", str(value))
    text = re.sub(r"-?\d+\.\d+(?= ?[(t)])", lambda number: shown(round(float(number[0]), 3) + 0.0), text)
    text = re.sub(r"\(([\d.]+) to ([\d.]+)\)", r"(\1–\2)", text)
    return re.sub(r"^([\d.]+) \((\1)–\1\)", r"\1", text).replace(" +- ", "±").replace(" / ", "/")


def commands(names: Sequence[str]) -> list[str]:
    """Return the commands that measure the figures of `names`, or of all files."""
    if unknown := set(names) - COMMANDS.keys():
        raise SystemExit(f"figures: there is no {', '.join(sorted(unknown))} in COMMANDS")
    return [f"{COMMANDS[name]} --json docs/figures/{name}.json" for name in COMMANDS if name in names or not names]


def main(arguments: list[str]) -> int:
    """Write or check the pages, or print commands; return the exit status."""
    if arguments[:1] == ["--commands"]:
        print("\n".join(commands(arguments[1:])))
        return 0
    written = {PAGE: page(), README: readme()}
    if arguments == ["--check"]:
        stale = [file.name for file, text in written.items() if not file.exists() or file.read_text("utf-8") != text]
        for name in stale:
            print(f"{name} differs from docs/figures/*.json: run make figures", file=sys.stderr)
        return int(bool(stale))
    for file, text in written.items():
        file.write_text(text, encoding="utf-8")
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
