"""Nexmark: the generator, answers under kills and scaling, Autopilot's cost, waves of load, and demand.

`events` takes seconds, `quick` six minutes, `demand` 40, `overhead` three hours, `answers` six, `wave` five, on two free
cores; with `--quick` one round of one query. The wave's peak is PEAK of what the fixed executors process when they are
overloaded.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from _common import Report, main_of_parts, progress, with_median

from elastream.bench.arms import Cluster, arm_of
from elastream.bench.demand import demand
from elastream.bench.nexmark.events import KINDS, Events
from elastream.bench.nexmark.queries import QUERIES
from elastream.bench.nexmark.workload import Nexmark, query_of
from elastream.bench.runs import Outcome, Setup
from elastream.bench.shapes import load_of
from elastream.bench.suite import Suite, run_figures
from elastream.cli.bench import QUICK_RATE, QUICK_SECONDS, QUICK_TOGETHER
from elastream.clouds.provider import SMALL
from elastream.core.hosts import Billing
from elastream.loads.pattern import Pattern

SOURCE = "the project's bar for the benchmark"
CLUSTER = Cluster(SMALL, max_hosts=2, partitions=2)
# The bars of waves are host-seconds, so hosts are billed by the second, as dynamic allocation returns them.
WAVE_HOSTS = 4
WAVE_CLUSTER = Cluster(replace(SMALL, billing=Billing(1.0)), max_hosts=WAVE_HOSTS, partitions=WAVE_HOSTS)
WAVES, ROUNDS = ("q5", "q8", "q11", "q17", "q20"), 5
OVERLOAD, PEAK = 50_000.0, 0.6
# More than most queries process on two executors. Queries share sessions: one takes as long to start as a query to run.
FLOOD, FLOOD_S, IN_SESSION = 250_000.0, 8.0, 4
# A search for the fewest executors at a load of which they need two of the four on two cores.
DEMAND_QUERY, DEMAND_RATE, DEMAND_S, SEARCHES = "q5", 90_000.0, 40.0, 10
KEPT_UP = 0.8  # of the events/s: executors that process this part are not overloaded
QUICK_LIMIT_S = 360.0


def run(
    names: Sequence[str],
    arms: str,
    load: Pattern,
    rounds: int = 1,
    together: int = 1,
    groups_in_session: int = 1,
    cluster: Cluster = CLUSTER,
    **setup: Any,
) -> list[Outcome]:
    """Run queries under arms, `together` at a time, and so many groups in a session, one after another."""
    workloads = [Nexmark(query_of(name), Events(load=load)) for name in names]
    groups = [workloads[at : at + together] for at in range(0, len(workloads), together)]
    sessions = [groups[at : at + groups_in_session] for at in range(0, len(groups), groups_in_session)]
    suite = Suite(Setup(cluster, **setup), sessions, [arm_of(arm) for arm in arms.split(",")], rounds)
    return suite.run(lambda text, done, total: progress(f"{done} of {total}: {text}"))


def overload(name: str, rate: float = OVERLOAD) -> Outcome:
    """Run a query on fixed executors under more events than they process."""
    (outcome,) = run([name], f"fixed:{WAVE_HOSTS}", load_of("constant", rate, 20.0), cluster=WAVE_CLUSTER)
    return outcome if outcome.service.throughput < KEPT_UP * rate else overload(name, 2 * rate)


def by_arm(outcomes: Sequence[Outcome], name: str) -> Mapping[str, Sequence[Outcome]]:
    """Return the rounds of a query by arm."""
    arms = dict.fromkeys(each.arm for each in outcomes)
    return {arm: [each for each in outcomes if (each.workload, each.arm) == (name, arm)] for arm in arms}


def measure_events(report: Report, quick: bool) -> None:
    events, rates = 200_000 if quick else 2_000_000, []
    for _ in range(9):
        since = time.process_time()
        for kind in KINDS:
            for _batch in Events().batches(kind, 0, events):
                pass
        rates.append(events / (time.process_time() - since))
    report.figures["events/s a core"] = with_median(rates)
    report.median_at_least("events/s that one core makes", rates, 1e6, SOURCE)


def measure_quick(report: Report, quick: bool) -> None:
    since = time.monotonic()
    load = load_of("constant", QUICK_RATE, QUICK_SECONDS)
    outcomes = run(tuple(QUERIES), "fixed:2", load, together=QUICK_TOGETHER, groups_in_session=len(QUERIES))
    report.figures["quick"] = {"seconds": time.monotonic() - since, "runs": [run_figures(each) for each in outcomes]}
    report.at_least("queries with right answers in `--quick`", sum(each.correct is True for each in outcomes), 23, SOURCE)
    report.at_most("seconds of `--quick`", time.monotonic() - since, QUICK_LIMIT_S, SOURCE)


def measure_answers(report: Report, quick: bool) -> None:
    load = load_of("constant", 400.0, 50.0) if quick else load_of("constant", 5_000.0, 1000.0)
    names = ("q4",) if quick else tuple(QUERIES)
    outcomes = run(names, "autopilot", load, kills=2, scales=True, target_latency=10.0)
    report.figures["answers"] = [run_figures(each) for each in outcomes]
    right = sum(each.correct is True for each in outcomes)
    what = f"queries with right answers over {load.count(load.seconds):,} events, two killed executors and two scalings"
    report.at_least(what, right, len(names), SOURCE)


def measure_overhead(report: Report, quick: bool) -> None:
    names, rounds = (("q5",), 1) if quick else (tuple(QUERIES), ROUNDS)
    load = load_of("constant", FLOOD, FLOOD_S)
    outcomes = run(names, "fixed:2,watched:2", load, rounds, groups_in_session=IN_SESSION)
    report.figures["overhead"] = [run_figures(each) for each in outcomes]
    means = []
    for name in names:
        plain, watched = (by_arm(outcomes, name)[arm] for arm in ("fixed:2", "watched:2"))
        ratios = [b.service.throughput / a.service.throughput for a, b in zip(plain, watched, strict=True)]
        means.append(statistics.geometric_mean(ratios))
        report.median_at_least(f"{name}: throughput with Autopilot over that without", ratios, 0.98, SOURCE)
    report.median_at_least("throughput with Autopilot over that without, by query", means, 0.98, SOURCE)


def measure_wave(report: Report, quick: bool) -> None:
    names, rounds = (WAVES[:1], 1) if quick else (WAVES, ROUNDS)
    for name in names:
        overloaded = overload(name)
        load = load_of("wave", PEAK * overloaded.service.throughput, 40.0 if quick else 180.0)
        outcomes = run([name], f"fixed:{WAVE_HOSTS},dra,autopilot", load, rounds, cluster=WAVE_CLUSTER)
        report.figures[name] = [run_figures(each) for each in (overloaded, *outcomes)]
        arms = by_arm(outcomes, name)
        ours = arms["autopilot"]
        report.median_at_least(f"{name}: share in time", [each.service.in_time for each in ours], 0.99, SOURCE)
        for arm, bar in ((f"fixed:{WAVE_HOSTS}", 0.7), ("dra", 1.0)):
            ratios = [a.host_seconds / b.host_seconds for a, b in zip(ours, arms[arm], strict=True)]
            report.median_at_most(f"{name}: host time against {arm}", ratios, bar, SOURCE)
        more = [a.service.in_time - b.service.in_time for a, b in zip(ours, arms["dra"], strict=True)]
        report.median_at_least(f"{name}: share in time above that of dra", more, 0.0, SOURCE)


def measure_demand(report: Report, quick: bool) -> None:
    workload = Nexmark(query_of(DEMAND_QUERY), Events(load=load_of("constant", DEMAND_RATE, DEMAND_S)))
    searches = 2 if quick else SEARCHES
    (found,) = demand(
        [(DEMAND_RATE, workload)], Setup(WAVE_CLUSTER), WAVE_HOSTS, searches, lambda text, done, total: progress(text)
    )
    needed = [each if each is not None else WAVE_HOSTS + 1 for each in found.executors]
    report.figures["demand: executors by search"] = needed
    # Any number from one to four would fit within one core, so these have half a core each.
    near = sum(abs(each - statistics.median_low(needed)) <= 1 for each in needed)
    what = f"{DEMAND_QUERY} at {DEMAND_RATE:,.0f}/s: share of {searches} searches within one executor of their median"
    report.at_least(what, near / searches, 0.9, SOURCE)


if __name__ == "__main__":
    parts = {
        "events": measure_events,
        "quick": measure_quick,
        "answers": measure_answers,
        "overhead": measure_overhead,
        "wave": measure_wave,
        "demand": measure_demand,
    }
    main_of_parts("nexmark", __doc__, parts)
