"""What planning of value against cost takes: ratios of CE, the genetic search, PLAStiCC, and the equations under them.

Linear Road as it is simulated, before anything is leased, at a mean of so many position reports a second; and the synthetic
dataflow of chapter 5. Both sides of a ratio are measured in turn. Seconds are of processor time but in a time box, which is
of the clock. How good plans are is in profit, beside what the exact model proves that no plan exceeds.

python benchmarks/value_cost.py [--quick] [--json FILE]
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _common import Report, interleaved, main, progress
from _throughput import compared

from elastream.core.frames import Floats
from elastream.policies.look_ahead.planner import look_ahead
from elastream.policies.value_cost.greedy import adapted, deployed
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, score
from elastream_papers.search.genetic import GeneticSettings, evolved
from elastream_papers.search.proven import optimum
from elastream_papers.thesis.deployed import problem_at
from elastream_papers.thesis.lookahead import experiment as ahead
from elastream_papers.thesis.reactive import experiment as reactive

SOURCE = "the project's bar"
SMALL, LARGE = 800, 8_000
"""Mean reports/s of the two plans of CE: ten times as many."""
GROWTH, HUNDREDTH, CONVERGED, STEPS = 12.0, 0.01, 0.98, 20.0
"""Bars: CE at the one rate over the other; CE over the genetic search; that within its time box over ten boxes; PLAStiCC
over a round of CE."""
EQUAL = (50, 500, 2_000)
"""Rates at which CE and the genetic search plan."""
BOXED = (50, 200)
"""Rates at which the time box is tried."""
BOX = 10.0
"""Seconds of the time box: less than a round of any policy is from the next."""
INSTANTS = 14
"""Steps that PLAStiCC looks ahead."""
SEED = 1


@dataclass(frozen=True)
class Size:
    """How much is measured. rounds: of a ratio; seeds: of the genetic search; box, proof: seconds of it and of the
    exact model."""

    rounds: int
    seeds: int
    box: float
    proof: float


FULL, QUICK = Size(15, 3, BOX, 60.0), Size(5, 1, BOX / 2, 10.0)


def road(rate: int) -> tuple[Problem, Conditions]:
    """Linear Road at a mean of `rate` reports/s, with hosts and rates that do not vary."""
    return problem_at(reactive.site_of(rate, reactive.NONE, SEED, reactive.ReactiveAssumptions()))


def timed(work: Callable[[], Any]) -> Callable[[], float]:
    """Processor seconds of `work`."""

    def seconds() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return seconds


def growth(report: Report, size: Size) -> None:
    """CE at ten times the rate."""
    large, small = road(LARGE), road(SMALL)
    deployed(*small)  # what is imported and compiled once is no part of it
    sides = interleaved(timed(lambda: deployed(*large)), timed(lambda: deployed(*small)), size.rounds, "CE's growth")
    report.figures["growth of ce"] = sides.figures(f"{LARGE} reports/s", f"{SMALL} reports/s")
    report.median_at_most(f"CE at {LARGE} reports/s over CE at {SMALL}", sides.ratios, GROWTH, SOURCE)


def beside_genetic(report: Report, size: Size) -> None:
    """CE and the genetic search at equal rates, with what each earns, and what no plan exceeds."""
    for rate in EQUAL[:1] if size is QUICK else EQUAL:
        case = road(rate)
        seeds = iter(range(10**6))
        sides = interleaved(
            timed(lambda case=case: deployed(*case)),
            timed(lambda case=case, seeds=seeds: evolved(*case, GeneticSettings(seconds=np.inf, seed=next(seeds)))),
            max(3, size.rounds // 3),
            f"CE and GA at {rate} reports/s",
        )
        report.figures[f"ce and ga at {rate}"] = sides.figures("ce", "ga") | earned(case, rate, size)
        report.median_at_most(f"CE over GA at {rate} reports/s", sides.ratios, HUNDREDTH, SOURCE)


def earned(case: tuple[Problem, Conditions], rate: int, size: Size) -> dict[str, Any]:
    """Profits of CE and of the genetic search by seed, and the bound that is proven."""
    problem, conditions = case
    greedy = score(problem, deployed(problem, conditions), conditions)
    bred = [evolved(problem, conditions, GeneticSettings(seconds=np.inf, seed=seed)) for seed in range(size.seeds)]
    best = optimum(problem, conditions, seconds=size.proof)
    genetic = [round(each.profit, 3) for each in bred]
    progress(f"profit at {rate} reports/s: CE {greedy.profit:.3f}, GA {genetic}, bound {best.bound:.3f}")
    return {
        "profit of ce": greedy.profit,
        "throughput of ce": greedy.mean,
        "profits of ga": [each.profit for each in bred],
        "profit of the exact model": best.profit,
        "proven bound": best.bound,
        "proven optimal": best.optimal,
        "seconds of the exact model": best.seconds,
    }


def time_box(report: Report, size: Size) -> None:
    """The genetic search within its time box, and in ten of them."""
    ratios: list[float] = []
    runs = []
    for rate in BOXED[:1] if size is QUICK else BOXED:
        problem, conditions = road(rate)
        for seed in range(size.seeds):
            # What bounds both is the clock, so there is nothing to interleave: each has as long as it is given.
            one, ten = (
                evolved(problem, conditions, GeneticSettings(generations=10**6, patience=10**6, seconds=seconds, seed=seed))
                for seconds in (size.box, 10 * size.box)
            )
            ratios.append(one.profit / ten.profit)
            runs.append({"rate": rate, "seed": seed, "one": one.profit, "ten": ten.profit, "generations": one.generations})
            progress(f"time box at {rate} reports/s: {one.profit:.4f} of {ten.profit:.4f}")
    report.figures["time box"] = {"seconds": size.box, "runs": runs, "ratios": ratios}
    report.median_at_least("profit of GA in its time box, of ten boxes", ratios, CONVERGED, SOURCE)


def looking_ahead(report: Report, size: Size) -> None:
    """PLAStiCC over thirty operators and fourteen steps, and one round of CE, from the same plan."""
    site = ahead.site_of(SEED, ahead.LookaheadAssumptions())
    problem, first = problem_at(site)
    plan: Deployment = deployed(problem, first)
    rates: Floats = np.array(
        [
            [site.loads[problem.operators[row]].rate((number + 0.5) * first.seconds) for row in problem.sources]
            for number in range(INSTANTS)
        ]
    )
    future = Conditions(rates, first.queues, first.seconds)
    now = Conditions(rates[:1] * 1.3, first.queues, first.seconds)  # off the goal, so that CE has something to do
    sides = interleaved(
        timed(lambda: look_ahead(problem, plan, future)),
        timed(lambda: adapted(problem, plan, now)),
        size.rounds,
        "PLAStiCC and CE",
    )
    report.figures["looking ahead"] = {"operators": 30, "steps": INSTANTS} | sides.figures("plasticc", "a round of ce")
    report.median_at_most("PLAStiCC, 30 operators and 14 steps, over a round of CE", sides.ratios, STEPS, SOURCE)


def run(options: argparse.Namespace) -> Report:
    """All of them."""
    report, size = Report(), QUICK if options.quick else FULL
    parts: Sequence[Callable[[Report, Size], None]] = (growth, beside_genetic, time_box, looking_ahead)
    for part in parts:
        part(report, size)
    compared(report, quick=options.quick)
    return report


def line(report: Report) -> str:
    """The ratios."""
    found = report.figures
    grown = found["growth of ce"]["ratio"]["median"]
    beside = {name: each["ratio"]["median"] for name, each in found.items() if name.startswith("ce and ga")}
    steps, vectors = found["looking ahead"]["ratio"]["median"], found["throughput"]["ratio"]
    boxed = float(np.median(found["time box"]["ratios"]))
    return (
        f"CE at {LARGE} is {grown:.2g} x CE at {SMALL}, and {max(beside.values()):.2g} of GA; GA's time box reaches "
        f"{boxed:.3f} of ten; PLAStiCC is {steps:.2g} x a round of CE; 4.4 to 4.7 vectorised take {vectors:.2g} of a loop"
    )


if __name__ == "__main__":
    main("value_cost", __doc__ or "", run, line)
