"""Page of chapter 6 of the thesis on Spark; `measured` measures."""

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from elastream.errors import InputError
from elastream.evaluation.checks import median_at_least, median_at_most
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Prose, Table
from elastream_papers.harness.report import report
from elastream_papers.thesis.resilience.balancing import BALANCED, CORES
from elastream_papers.thesis.resilience.bars import SURE, risen
from elastream_papers.thesis.resilience.bed import HOST, NORMAL, RecoveryCost
from elastream_papers.thesis.resilience.measured import HOSTS, NAMES, PARTS, Resilience, Sizes, measure

# bars: recovery (seconds, p. 121), records/s with copies over without (p. 147: a drop of 15 %), seconds until an idle host
# works (p. 149), part of the state in a checkpoint every two seconds (p. 150), batches from a skew until balance (project's
# bar; Fig. 6.11(a): 200 s)
RECOVERED, KEPT, REACTED, DELTA, WITHIN = 1.5, 0.85, 3.0, 0.07, 20
PAPER: Mapping[str, str] = {
    "batches until balanced": "from 500 s, when the skew begins, to 700 s, through two neighbours (Fig. 6.11(a))",
    "records/s, r = 2 over r = 0": '"around 15%" less (p. 147)',
    "records/s, r = 1 over state outside": '"around 2.8x" Storm with Cassandra (p. 147); "up to 2x" (p. 156)',
    "first batch on an idle host": '"around 1.5-3 seconds", detection, replay and restore (p. 149)',
    "batch in which an interval moves": "10 to 500 ms at moderate rates, growing with both (Fig. 6.11(c))",
    "checkpoint over whole state": '"around 7%" at 2 s (Fig. 6.12)',
    "records of the neighbour of a killed host": "its data rate rises (Fig. 6.13(a))",
    "recovery": "700 to 1,500 ms (p. 121), 1,200 to 1,500 ms for 3 to 6 failures at once of n = 12 (Fig. 6.13(b))",
}


# columns of a kill (`bed.Steps`)
STEPS = (
    "until the driver knows", "until state is on successors", "partitions opened from a copy", "files read for these",
    "longest opening",
)  # fmt: skip


def run_resilience_spark(options: ExperimentOptions, part: str | None = None) -> Findings:
    """Measure all parts on one cluster, or `part` alone (half an hour at most).

    quick: each thing once. Raises InputError for an unknown part.
    """
    if part is not None and part not in NAMES:
        raise InputError(f"the experiment on Spark has no part {part!r} (there are: {', '.join(NAMES)})")
    begun = time.monotonic()
    found = measure(Sizes.quick() if options.quick else Sizes(), options.progress, part)
    return outcome(found, time.monotonic() - begun)


def outcome(found: Resilience, seconds: float) -> Findings:
    return report(
        "Chapter 6 on Spark: operators with state that balance, scale and recover",
        "Adaptive and resilient stream processing on cloud infrastructure (Kumbhare), chapter 6, on a real Spark "
        f"cluster of this machine: {_hosts()}. State is exact here, by the source's offsets and the checkpoint; a copy "
        "of a state partition follows the checkpoint on another host. A host is lost by SIGKILL of all its processes. "
        "Recovery is the time from then to the commit of the first batch that began after it and took at most "
        f"{NORMAL:g} times the median of those before. Two hosts killed at once are a whole zone: of two zones in "
        "turn around the ring, hosts that are no neighbours are one zone's.",
        found.figures(),
        tuple(_bars(found)),
        {
            "": [
                Table(
                    "Recovery on Spark (s)",
                    ("", "runs", "median", "least", "most", "batch before"),
                    tuple(_recoveries(found)),
                ),
                Table("Where the time after a kill goes, medians", ("", *STEPS), tuple(_steps(found))),
                Table("On Spark", ("", "median", "runs"), tuple(_rows(found))),
                Table("The thesis", ("", "printed"), tuple(PAPER.items())),
                *(Prose(f"Did not run through: {part}: {why}.") for part, why in found.failed.items()),
                *(Prose(f"Not measured: {remark}.") for remark in found.remarks),
            ]
        },
        seconds,
        paper=dict(PAPER),
        plant="spark",
        hosts=_hosts(),
    )


def _hosts() -> str:
    return (
        f"{HOSTS} processes of {HOST.slots} slots on one machine, whose cores they share; each held to {HOST.cores:g} core,"
        f" and to {CORES:g} where a skew is balanced"
    )


def _bars(found: Resilience) -> Iterator[Check]:
    plain = found.speeds.get("r = 0", [])
    for way in ("r = 1", "r = 2"):
        # If a part failed within a round, some sides have one measurement fewer.
        if ratios := [a / b for a, b in zip(found.speeds.get(way, []), plain, strict=False)]:
            yield median_at_least(f"records/s, {way} over r = 0", ratios, KEPT, "p. 147")
    if found.balanced:
        name = f"batches until the busiest host's tasks take {BALANCED:g} times the mean one's CPU time"
        yield median_at_most(name, found.balanced, WITHIN, "Fig. 6.11(a)")
    if idle := found.joined["idle"]:
        yield median_at_most("s to the first batch on an idle host", idle, REACTED, "p. 149")
    if 2.0 in found.deltas:
        yield Check.at_most("checkpoint over whole state at 2 s", found.deltas[2.0], DELTA, "Fig. 6.12")
        parts = [found.deltas[each] for each in sorted(found.deltas)]
        grows = all(a < b for a, b in pairwise(parts))
        yield Check("checkpoint over whole state grows with the interval", float(grows), "yes", grows, "Fig. 6.12")
    for count, faults in sorted(found.faults.items()):
        runs = [each.recovered for each in faults]
        yield median_at_most(f"s from the kill of {count} to a batch as before", runs, RECOVERED, "p. 121")
    yield from _flat(found.faults)
    for name, values in (("counts that differ from a batch query's", found.wrong), ("restarts", found.restarts)):
        yield Check.at_most(name, sum(values.values()), 0, "6.6; exact here")
    yield Check.at_most("parts that did not run through", len(found.failed), 0, "what they would show is not known")


def _flat(faults: Mapping[int, Sequence[RecoveryCost]]) -> Iterator[Check]:
    """Yield a check that recovery does not slow down with the number of lost hosts (three at least)."""
    every = [(count, each.recovered) for count, all_of in faults.items() for each in all_of]
    points = [(count, seconds) for count, seconds in every if math.isfinite(seconds)]
    if len({count for count, _ in points}) > 1:
        slope, error = risen(points)
        holds = None if math.isnan(error) else slope <= SURE * error
        name = "s more for each host killed at once, not above noise"
        yield Check(name, f"{slope:.2f} +- {error:.2f}", f"<= {SURE:g} standard errors", holds, "Fig. 6.13(b)")


def _recoveries(found: Resilience) -> Iterator[tuple[str, ...]]:
    for count, faults in sorted(found.faults.items()):
        if faults:
            name = f"{count} of {HOSTS} hosts at once" + (", a whole zone" if faults is found.zone else "")
            runs = [each.recovered for each in faults]
            row = (statistics.median(runs), min(runs), max(runs), statistics.median(each.normal for each in faults))
            yield (name, str(len(runs)), *(f"{value:.2f}" for value in row))


def _steps(found: Resilience) -> Iterator[tuple[str, ...]]:
    for count, kills in sorted(found.steps.items()):
        detected, placed, opening = (
            _median([getattr(each, name) for each in kills], "{:.3f} s") for name in ("detected", "placed", "opening")
        )
        opened, files = (_median([getattr(each, name) for each in kills], "{:g}") for name in ("opened", "files"))
        yield (f"{count} of {HOSTS} hosts at once", detected, placed, opened, files, opening)


def _median(values: Sequence[float], form: str) -> str:
    known = [value for value in values if math.isfinite(value)]
    return form.format(statistics.median(known)) if known else "unknown"


def _rows(found: Resilience) -> Iterator[tuple[str, ...]]:
    for way, runs in found.speeds.items():
        yield _row(f"records/s, {way}", runs, "{:,.0f}")
    if (outside := found.speeds.get("outside")) and (copied := found.speeds.get("r = 1")):
        yield _row("records/s, r = 1 over state outside", [a / b for a, b in zip(copied, outside, strict=False)], "{:.2f}")
    if found.balanced:
        yield _row("batches from a skew until hosts are alike", found.balanced, "{:.0f}")
    if found.taken:
        for number, moment in enumerate(("before", "after")):
            parts = [each[number] for each in found.taken]
            yield _row(f"records of the neighbour of a killed host, part of all, {moment}", parts, "{:.2f}")
    for kind, runs in found.joined.items():
        if runs:
            yield _row(f"s to the first batch on a host that is {kind}", runs, "{:.2f}")
    for (count, rows), runs in found.moved.items():
        share = count / PARTS
        yield _row(f"longest batch while {share:.0%} of the state moves, over the median, {rows:,} records", runs, "{:.2f}")
    for seconds, part in sorted(found.deltas.items()):
        yield _row(f"checkpoint every {seconds:g} s over the whole state", [part], "{:.3f}")


def _row(name: str, runs: Sequence[float], form: str) -> tuple[str, ...]:
    return (name, form.format(statistics.median(runs)), ", ".join(form.format(run) for run in runs))
