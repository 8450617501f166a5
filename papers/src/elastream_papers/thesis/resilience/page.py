"""Page of the resilience experiment: Figures 6.10 to 6.13 beside the thesis's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elastream.evaluation.cases import run_all
from elastream.evaluation.checks import shares_of
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Findings
from elastream.evaluation.page import Block, Table
from elastream.report.plots import Curve, Plot
from elastream_papers.harness.assumptions import assumption_table, draws_of, share_table, values
from elastream_papers.harness.report import by_verdict, curves, report
from elastream_papers.thesis.resilience.bars import (
    AT_INTERVAL,
    DELTA_RATE,
    TIMED_RATE,
    ResilienceResults,
    bars,
    is_timed,
    lost,
)
from elastream_papers.thesis.resilience.experiment import FIRST_HOSTS, ResilienceCase, ResilienceRun, run_case
from elastream_papers.thesis.resilience.reducers import Protection
from elastream_papers.thesis.resilience.scene import ResilienceAssumptions

# by figure and value, as printed
FIGURES: Mapping[str, Mapping[str, str]] = {
    "peak throughput (Fig. 6.10)": {
        "drop from r = 0 to r = 2": "around 15 % (p. 147)",
        "r = 1 over Storm with Cassandra": "around 2.8x (p. 147); up to 2x (p. 156)",
        "R^2 of a line through r = 1": "scales (almost) linearly",
    },
    "balance (Fig. 6.11(a))": {"seconds until balanced": "about 200: from 500 s to 700 s", "neighbours": "2"},
    "scale-out (Fig. 6.11(b))": {"reaction, s": "1.5 to 3"},
    "moved interval (Fig. 6.11(c))": {"ms": "10 to 500, growing with interval and rate"},
    "checkpoints (Fig. 6.12)": {"part of the state at 2 s": "around 7 %"},
    "recovery (Fig. 6.13(b))": {"ms": "700 to 1,500 (p. 121); 1,200 to 1,500 for 3 to 6 failures (p. 152)"},
    "failures survived (6.6)": {"at best": "n r / (r + 1)"},
}


# hosts of reducers of Fig. 6.10: of up to 20 virtual machines (p. 145) some are mappers'
SIZES, QUICK_SIZES = (3, 4, 6, 8, 10, 12, 14, 16), (3, 6, 12)
SYSTEMS: Mapping[str, tuple[int, Protection]] = {
    "r = 0": (0, Protection.PEERS),
    "r = 1": (1, Protection.PEERS),
    "r = 2": (2, Protection.PEERS),
    "Storm, local state": (0, Protection.UPSTREAM),
    "Storm, external state": (0, Protection.EXTERNAL),
}
SEEDS, QUICK_SEEDS = (1, 2, 3, 4, 5), (1,)  # runs of whole scenarios: at least five for a sign test
# runs of single moves and recoveries, at other moments between checkpoints
REPEATS, QUICK_REPEATS = tuple(range(1, 11)), (1, 2, 3, 4, 5)
# messages/s and seconds of Fig. 6.11(c), whose axes are illegible: to 6,000, as Fig. 6.13(a), and "up to 10 s"
MOVED_RATES, MOVED_INTERVALS = (1_500.0, 3_000.0, 6_000.0), (1.0, 2.0, 5.0, 10.0)
DELTA_INTERVALS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0)  # seconds of Fig. 6.12
DELTA_RATES = (600.0, 1_500.0, 3_000.0, 15_000.0, 30_000.0)  # messages/s of checkpoints: up to three hosts' capacity
FAULTY = 12  # hosts of Fig. 6.13(b)
# seconds between checkpoints (heartbeats) in Fig. 6.13(b), not printed: of Fig. 6.12's intervals only this one can be
# missed within 1,500 ms
HEARTBEAT = 1.0
FAILURES, QUICK_FAILURES = (1, 2, 3, 4, 5, 6), (1, 3, 6)
# hosts and r of rings that lose section 6.6's most hosts, then r + 1 in a row
SURVIVED = ((6, 1), (12, 1), (12, 2), (12, 3), (20, 1))
DRAWS = 10  # sets of drawn assumptions


def run_resilience(options: ExperimentOptions) -> Findings:
    """Run every figure. quick: fewer sizes and runs. sensitivity: also the quick form with drawn assumptions."""
    assumptions = ResilienceAssumptions()
    draws = draws_of(assumptions, options, DRAWS)
    todo = _cases(assumptions, options.quick) + [case for each in draws for case in _cases(each, True)]
    runs, seconds = run_all(run_case, todo, options, lambda c: f"{c.part}, {c.hosts} hosts")
    main, *others = (
        ResilienceResults([run for run in runs if run.case.assumptions == each]) for each in (assumptions, *draws)
    )
    return outcome(main, others, seconds)


def _cases(assumptions: ResilienceAssumptions, quick: bool) -> list[ResilienceCase]:
    """Return the runs to make, the longest first."""
    seeds, repeats = (QUICK_SEEDS, QUICK_REPEATS) if quick else (SEEDS, REPEATS)
    scenes = QUICK_REPEATS if quick else SEEDS
    found = [
        ResilienceCase("growth", FIRST_HOSTS, seed=seed, assumptions=assumptions) for seed in (scenes if quick else repeats)
    ]
    found += [ResilienceCase("balance", seed=seed, assumptions=assumptions) for seed in scenes]
    found += [
        ResilienceCase("peak", hosts, replicas, protection=protection, seed=seed, assumptions=assumptions)
        for hosts in reversed(QUICK_SIZES if quick else SIZES)
        for replicas, protection in SYSTEMS.values()
        for seed in seeds[:3]
    ]
    found += [
        ResilienceCase(
            "recovery", FAULTY, rate=TIMED_RATE, checkpoint=HEARTBEAT, together=together, failures=failures, seed=seed,
            assumptions=assumptions,
        )
        for together in (False, True)
        for failures in (QUICK_FAILURES if quick else FAILURES)
        for seed in repeats
    ]  # fmt: skip
    found += [
        ResilienceCase(
            "recovery", hosts, r, checkpoint=HEARTBEAT, failures=r + 1 if in_a_row else hosts * r // (r + 1),
            in_a_row=in_a_row, seed=seed, assumptions=assumptions,
        )
        for hosts, r in SURVIVED
        for in_a_row in (False, True)
        for seed in seeds
    ]  # fmt: skip
    found += [
        ResilienceCase("move", rate=rate, checkpoint=every, seed=seed, assumptions=assumptions)
        for every in reversed(MOVED_INTERVALS)
        for rate in MOVED_RATES
        for seed in repeats
    ]
    found += [
        ResilienceCase("delta", checkpoint=every, rate=DELTA_RATE, seed=seed, assumptions=assumptions)
        for every in DELTA_INTERVALS
        for seed in seeds
    ]
    found += [ResilienceCase("delta", checkpoint=AT_INTERVAL, rate=rate, assumptions=assumptions) for rate in DELTA_RATES]
    return [*found, ResilienceCase("fault", assumptions=assumptions)]


def outcome(main: ResilienceResults, draws: Sequence[ResilienceResults], seconds: float) -> Findings:
    """Return the findings. draws: under drawn assumptions."""
    checks = bars(main)
    shares = shares_of(checks, [bars(each) for each in draws])
    assumptions = main.runs[0].case.assumptions
    figures: dict[str, Any] = {
        "peak throughput (Fig. 6.10)": {
            name: {f"{hosts:g} hosts": round(main.peak(hosts, *system)) for hosts in main.sizes}
            for name, system in SYSTEMS.items()
        },
        "balance (Fig. 6.11(a))": _spread(main.of("balance")),
        "scale-out (Fig. 6.11(b))": _spread(main.of("growth")),
        "moved interval (Fig. 6.11(c))": {
            f"{rate:g}/s": {
                f"every {every:g} s": _spread(main.of("move", rate=rate, checkpoint=every))
                for every in main.axis("move", "checkpoint")
            }
            for rate in main.axis("move", "rate")
        },
        "checkpoints (Fig. 6.12)": {
            f"every {every:g} s": _spread(main.of("delta", checkpoint=every, rate=DELTA_RATE))
            for every in main.axis("delta", "checkpoint")
        },
        f"checkpoints every {AT_INTERVAL:g} s, by rate": {
            f"{rate:g}/s": _spread(main.of("delta", checkpoint=AT_INTERVAL, rate=rate))
            for rate in main.axis("delta", "rate")
        },
        "lost by r = 2 of the rate up to which no queue grows": {
            f"{hosts:g} hosts": round(lost(main, hosts), 4) for hosts in main.sizes
        },
        "fault (Fig. 6.13(a))": _spread(main.of("fault")),
        "recovery (Fig. 6.13(b))": {f"{failures} failures": _spread(_timed(main, failures)) for failures in _numbers(main)},
        "recovery, each host with its own moments": {
            f"{failures} failures": _spread(_timed(main, failures, together=False)) for failures in _numbers(main)
        },
        "failures survived (6.6)": {
            _failed(run.case): {name: run.figures[name] for name in ("lacking", "twice", "emitted")}
            for run in main.of("recovery")
            if not is_timed(run.case)
        },
        "share of draws": shares,
        "assumptions": values(assumptions),
    }
    return report(
        "Resilience: reducers on a ring (simulated)",
        "Adaptive and resilient stream processing on cloud infrastructure (Kumbhare, 2016), chapter 6, the thesis's "
        "own design, simulated: word frequencies on hosts of four cores, mappers that multicast to r + 1 reducers. "
        "What is not marked as the thesis's is simulated. That no tuple is lost is proven by sequence numbers; tuples "
        "that a state took in twice are counted.",
        figures,
        checks,
        {
            "": [_printed()],
            "Peak throughput (Fig. 6.10)": [_peak_plot(main), _peak_table(main)],
            "Balance, and hosts that come (Fig. 6.11)": [*_over_time(main), _moved_table(main)],
            "Incremental checkpoints (Fig. 6.12)": [_delta_plot(main), _delta_table(main)],
            "Failures (Fig. 6.13, section 6.6)": [*_fault_plots(main), _recovery_table(main), _survival_table(main)],
            "What is assumed": [assumption_table(assumptions)],
            "What depends on it": share_table(shares, len(draws)),
        },
        seconds,
        paper=FIGURES,
        verdict=by_verdict(checks, missed="Missed") or "No bar is missed.",
        runs=len(main.runs),
    )


def _failed(case: ResilienceCase) -> str:
    return f"{case.failures} of {case.hosts}, r = {case.replicas}, {'' if case.in_a_row else 'not '}in a row"


def _numbers(results: ResilienceResults) -> list[int]:
    return sorted({run.case.failures for run in results.of("recovery") if is_timed(run.case)})


def _timed(results: ResilienceResults, failures: int, *, together: bool = True) -> list[ResilienceRun]:
    return [run for run in results.of("recovery", failures=failures, together=together) if is_timed(run.case)]


def _spread(runs: Sequence[ResilienceRun]) -> dict[str, Any]:
    found: dict[str, Any] = {"runs": len(runs)}
    for name in runs[0].figures if runs else ():
        known = [run.figures[name] for run in runs if np.isfinite(run.figures[name])]
        found[name] = [round(float(each), 5) for each in (np.median(known), min(known), max(known))] if known else None
    return found


def _printed() -> Table:
    rows = tuple((f"{figure}: {name}", said) for figure, named in FIGURES.items() for name, said in named.items())
    return Table("What the thesis prints", ("", "thesis"), rows)


def _peak_plot(results: ResilienceResults) -> Plot:
    points = {n: [(hosts, results.peak(hosts, *system)) for hosts in results.sizes] for n, system in SYSTEMS.items()}
    return curves("Peak throughput by hosts (simulated)", "hosts", "messages/s", points)


def _peak_table(results: ResilienceResults) -> Table:
    rows = []
    for hosts in results.sizes:
        peaks = [results.peak(hosts, *system) for system in SYSTEMS.values()]
        rows.append(
            (
                f"{hosts:g} hosts",
                *(f"{peak:,.0f}" for peak in peaks),
                f"{lost(results, hosts, 'throughput'):.3f}",
                f"{lost(results, hosts):.3f}",
                f"{peaks[1] / peaks[4]:.2f}",
            )
        )
    rows.append(("   thesis, p. 147", *("-" for _ in SYSTEMS), "-", "around 0.15", "around 2.8"))
    return Table(
        "Peak throughput, messages/s; and what r = 2 loses of it, and of the rate up to which no queue grows",
        ("", *SYSTEMS, "lost by r = 2", "no queue", "r = 1 over external"),
        tuple(rows),
    )


def _over_time(results: ResilienceResults) -> list[Block]:
    found: list[Block] = []
    for run in results.of("balance")[:1]:
        caption = "Skew at 500 s on three hosts (simulated, compare Fig. 6.11(a))"
        found.append(_hosts_plot(caption, run, "rate", "messages/s"))
        found.append(_hosts_plot("What waits meanwhile (simulated)", run, "queued", "tuples"))
    for run in results.of("growth")[:1]:
        x = run.series["seconds"].tolist()
        lines = (
            Curve("offered", x, run.series["offered"].tolist(), colour=5, dash="dot"),
            Curve("throughput", x, run.series["throughput"].tolist()),
            Curve("hosts", x, run.series["hosts"].tolist(), colour=1, axis=2, steps=True),
        )
        found.append(Plot("A rising rate (simulated, compare Fig. 6.11(b))", "s", "messages/s", lines, "hosts"))
    return found


def _hosts_plot(caption: str, run: ResilienceRun, name: str, unit: str) -> Plot:
    mine = {key.removeprefix(f"{name} "): values for key, values in run.series.items() if key.startswith(f"{name} ")}
    x = run.series["seconds"].tolist()
    return curves(caption, "s", unit, {host: zip(x, values.tolist(), strict=True) for host, values in mine.items()})


def _moved_table(results: ResilienceResults) -> Table:
    intervals = results.axis("move", "checkpoint")
    rows = [
        (
            f"{rate:,.0f} messages/s",
            *(
                f"{1e3 * float(np.median(results.values('move', 'latency', rate=rate, checkpoint=every))):.0f}"
                for every in intervals
            ),
        )
        for rate in results.axis("move", "rate")
    ]
    rows.append(("   thesis, Fig. 6.11(c)", *("10 to 500" for _ in intervals)))
    return Table(
        "Half of an interval moves to a neighbour: ms until the backup is replayed, median, by checkpoint interval",
        ("", *(f"{every:g} s" for every in intervals)),
        tuple(rows),
    )


def _delta_plot(results: ResilienceResults) -> Plot:
    points = {}
    for every in results.axis("delta", "checkpoint"):
        series = results.of("delta", checkpoint=every, rate=DELTA_RATE)[0].series
        points[f"{every:g} s"] = zip(series["seconds"].tolist(), series["ratio"].tolist(), strict=True)
    caption = "Checkpoint over full state, by interval (simulated, compare Fig. 6.12: around 7 % at 2 s)"
    return curves(caption, "s", "part", points)


def _delta_table(results: ResilienceResults) -> Table:
    rates = results.axis("delta", "rate")
    row = (f"{np.mean(results.values('delta', 'ratio', rate=rate, checkpoint=AT_INTERVAL)):.3f}" for rate in rates)
    return Table(
        f"The same every {AT_INTERVAL:g} s by rate, at the end: how many different words come depends on how many come at "
        "all; the thesis prints no rate",
        ("messages/s", *(f"{rate:,.0f}" for rate in rates)),
        (("checkpoint over state", *row), ("   thesis, p. 150", *("around 0.07" for _ in rates))),
    )


def _fault_plots(results: ResilienceResults) -> list[Plot]:
    return [
        _hosts_plot(caption, run, name, unit)
        for run in results.of("fault")[:1]
        for caption, name, unit in (
            ("h1 fails at 500 s: rates (simulated, compare Fig. 6.13(a))", "rate", "messages/s"),
            ("Tuples kept as a secondary (simulated, compare Fig. 6.13(a))", "backups", "tuples"),
        )
    ]


def _recovery_table(results: ResilienceResults) -> Table:
    rows = []
    for failures in _numbers(results):
        took = 1e3 * np.array([run.figures["recovery"] for run in _timed(results, failures)])
        twice = np.median([run.figures["twice"] for run in _timed(results, failures)])
        row = (f"{np.median(took):.0f}", f"{took.min():.0f} to {took.max():.0f}", f"{took.size}", f"{twice:.0f}")
        each = np.median([run.figures.get("mean", np.nan) for run in _timed(results, failures)])
        apart = np.median([run.figures["recovery"] for run in _timed(results, failures, together=False)] or [np.nan])
        beside = (f"{1e3 * each:.0f}", f"{1e3 * apart:.0f}")
        rows.append((f"{failures} failures", *row, *beside, "1,200 to 1,500" if failures >= 3 else "700 to 1,500"))
    return Table(
        f"Recovery of {FAULTY} hosts, r = 1, {TIMED_RATE:,.0f} messages/s, a checkpoint every {HEARTBEAT:g} s: the "
        "slowest of the hosts that take over, as the thesis measures it (p. 152); all make their checkpoints at the same "
        "moments, as clocks agree (p. 146). Beside it the mean of these hosts, and the slowest where each host has moments "
        "of its own: the maximum of more waits is longer",
        ("", "ms, median", "range", "runs", "tuples taken in twice", "mean", "own moments", "thesis, ms"),
        tuple(rows),
    )


def _survival_table(results: ResilienceResults) -> Table:
    rows, good = [], []
    for run in results.of("recovery"):
        if not is_timed(run.case) and run.case.seed == 1:
            case, lacking = run.case, run.figures["lacking"]
            figures = (f"{run.figures['emitted']:,.0f}", f"{lacking:,.0f}", f"{run.figures['twice']:,.0f}")
            rows.append((_failed(case), *figures))
            good.append(lacking == 0)
    return Table(
        "Hosts that fail at once, r or fewer in a row, or r + 1",
        ("", "tuples", "lost", "taken in twice"),
        tuple(rows),
        tuple(good),
    )
