"""A campaign of faults: results stay exact, no host leaks, and the run continues.

--simulated (the default): 500 seeds of 20 faults each, at most 8 minutes on two cores, then the mutants. Engine, machines,
disk, clock and network are simulated; everything else is real. --spark: on one warm cluster, 22 minutes. --mutants: with
one fix undone at a time, a part of the seeds must break a rule. --seed N [--shrink]: replay one schedule, and shorten a
failing one.
"""

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from _common import Report, counting, main, progress
from campaign.history import Violation
from campaign.mutants import MUTANTS, Mutant
from campaign.schedule import Schedule, drawn, shortened, to_json
from campaign.world import ran

from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.trials import cores

SEEDS, QUICK, FAULTS = 500, 40, 20  # schedules of the simulated form, of its quick form, and faults of each
MINUTES, ON_CORES = 8.0, 2  # the simulated form's bar, and the cores that it assumes
SPARK_FAULTS, SPARK_QUICK, SPARK_MINUTES = 300, 30, 22.0  # the same on Spark
TRIED, QUICK_TRIED = 100, 4
"""Schedules of the campaign on which a mutant is tried, of those in which it can show, until one catches it."""
CAUGHT = 1.0  # fraction of the mutants that must be caught


@dataclass(frozen=True, slots=True)
class Case:
    """A seed, and its mutant; none: the code as it is."""

    seed: int
    faults: int = FAULTS
    mutant: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a case. kinds: its faults. broken: violations."""

    case: Case
    broken: tuple[Violation, ...]
    world: str = ""
    seconds: float = 0.0
    kinds: tuple[str, ...] = ()
    batches: int = 0
    calls: int = 0
    restarts: int = 0


def run_seed(case: Case) -> Outcome:
    schedule, began = drawn(case.seed, case.faults), time.process_time()
    history, broken = ran(schedule)
    kinds = tuple(kind for _, kind in history.faults)
    seconds = time.process_time() - began
    return Outcome(case, broken, schedule.world, seconds, kinds, len(history.sink), len(history.calls), history.restarts)


def first_detection(mutant: Mutant, first: int, tries: int, faults: int = FAULTS) -> Outcome | None:
    shows = (seed for seed in range(first, first + SEEDS) if mutant.shows(drawn(seed, faults)))
    for seed in islice(shows, tries):
        with mutant.at_work():
            try:
                found = run_seed(Case(seed, faults, mutant.name))
            except Exception as error:  # a world that cannot continue counts as broken
                return Outcome(Case(seed, faults, mutant.name), (Violation("control", 0.0, repr(error)),))
        if found.broken:
            return found
    return None


def detection_text(outcome: Outcome | None) -> str:
    return "missed" if outcome is None else f"caught by seed {outcome.case.seed}: {outcome.broken[0]}"


def simulated(arguments: argparse.Namespace) -> Report:
    report = Report()
    seeds = arguments.seeds or (QUICK if arguments.quick else SEEDS)
    cases = [Case(seed, arguments.faults or FAULTS) for seed in range(arguments.first, arguments.first + seeds)]

    options = ExperimentOptions(workers=arguments.workers, progress=counting(50, "seeds"))
    found, seconds = run_all(run_seed, cases, options, str)
    for each in [each for each in found if each.broken][:20]:
        progress(f"seed {each.case.seed} ({each.world}): {'; '.join(map(str, each.broken[:3]))}")
    faults = Counter(kind for each in found for kind in each.kinds)
    report.figures = {
        "seeds": len(found),
        "first seed": arguments.first,
        "faults": sum(faults.values()),
        "faults by kind": dict(faults.most_common()),
        "batches": sum(each.batches for each in found),
        "calls of providers": sum(each.calls for each in found),
        "restarts of processes": sum(each.restarts for each in found),
        "seeds that broke a rule": [each.case.seed for each in found if each.broken],
        "rules broken": dict(Counter(rule for each in found for rule in {one.rule for one in each.broken})),
        "minutes": seconds / 60,
        "core seconds a seed": sum(each.seconds for each in found) / len(found),
    }
    report.at_most("seeds that broke a rule", len(report.figures["seeds that broke a rule"]), 0)
    if seeds >= SEEDS:
        report.at_least("faults", report.figures["faults"], SEEDS * FAULTS)
        report.at_most(f"minutes on {ON_CORES} cores", report.figures["minutes"], MINUTES)
    return report


def mutants(arguments: argparse.Namespace, report: Report) -> Report:
    tries = QUICK_TRIED if arguments.quick else TRIED
    wanted = [each.name for each in MUTANTS if not arguments.only or arguments.only in each.name]

    def tried_mutant(name: str) -> Outcome | None:
        mutant = next(each for each in MUTANTS if each.name == name)
        outcome = first_detection(mutant, arguments.first, tries, arguments.faults or FAULTS)
        progress(f"{name} (undoes: {mutant.undoes}): {detection_text(outcome)}")
        return outcome

    found, seconds = run_all(tried_mutant, wanted, ExperimentOptions(workers=arguments.workers), str)
    shown = {
        name: "missed" if each is None else f"seed {each.case.seed}: {each.broken[0].rule}"
        for name, each in zip(wanted, found, strict=True)
    }
    report.figures |= {
        "minutes of mutants": seconds / 60,
        "mutants": len(wanted),
        "mutants caught": sum(each is not None for each in found),
        **{f"mutant: {name}": by for name, by in shown.items()},
        "mutants in full": {name: detection_text(each) for name, each in zip(wanted, found, strict=True)},
    }
    report.at_least(
        "fraction of mutants caught", report.figures["mutants caught"] / max(1, len(wanted)), CAUGHT, "the project's bar"
    )
    return report


def on_spark(arguments: argparse.Namespace) -> Report:
    from campaign.on_spark import on_spark_ran

    count = arguments.faults or (SPARK_QUICK if arguments.quick else SPARK_FAULTS)
    found = on_spark_ran(arguments.first, count, progress)
    progress("\n".join((*map(str, found.broken), *found.remarks)))
    report = Report()
    report.figures = {
        "faults": sum(found.faults.values()),
        "faults by kind": dict(found.faults.most_common()),
        "of them done": dict(found.done.most_common()),
        "batches": found.batches,
        "records": found.records,
        "starts of the driver": found.starts,
        "seconds until all had settled": found.settled,
        "minutes": found.seconds / 60,
        "broken": [str(each) for each in found.broken],
        "remarks": found.remarks,
    }
    report.at_most("rules broken", len(found.broken), 0)
    killed = found.done["kill the driver"] + found.done["kill the supervisor"]
    ours = max(0, found.starts - 1 - killed)
    report.at_most("starts of the driver that no kill of it or its supervisor explains", ours, 0)
    if count >= SPARK_FAULTS:
        report.at_least("faults", report.figures["faults"], SPARK_FAULTS)
        report.at_most(f"minutes on {ON_CORES} cores", report.figures["minutes"], SPARK_MINUTES)
    return report


def replay_seed(arguments: argparse.Namespace) -> Report:
    report = Report()
    schedule = drawn(arguments.seed, arguments.faults or FAULTS)
    _, broken = ran(schedule)
    progress("\n".join(map(str, broken)))
    if broken and arguments.shrink:
        rules = {each.rule for each in broken}

        def fails(shorter: Schedule) -> bool:
            return bool(rules & {each.rule for each in ran(shorter)[1]})

        schedule = shortened(schedule, fails)
        faults = "\n".join(map(str, schedule.faults))
        progress(f"{len(schedule.faults)} faults are enough:\n{faults}")
    report.figures = {"schedule": to_json(schedule), "broken": [str(each) for each in broken]}
    report.at_most("rules broken", len(broken), 0)
    return report


def measure(arguments: argparse.Namespace) -> Report:
    if arguments.seed is not None:
        return replay_seed(arguments)
    if arguments.mutants:
        return mutants(arguments, Report())
    if arguments.spark:
        return on_spark(arguments)
    return mutants(arguments, simulated(arguments))


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--simulated", action="store_true", help="on an engine of arithmetic (the default)")
    parser.add_argument("--spark", action="store_true", help="on Spark, one warm cluster")
    parser.add_argument("--mutants", action="store_true", help="with one mend undone at a time")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants whose names have this")
    parser.add_argument("--seed", type=int, help="this schedule alone")
    parser.add_argument("--shrink", action="store_true", help="make a failing schedule shorter")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--faults", type=int, help="of each seed; on Spark, of all")
    parser.add_argument("--workers", type=int, default=cores(), help="processes")


if __name__ == "__main__":
    main("faults", __doc__, measure, more)
