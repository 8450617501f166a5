"""Planning time of value against cost: ratios of CE, the genetic search, PLAStiCC, and the equations under them.

Linear Road as it is simulated, before anything is leased, at a mean of so many position reports a second; and the synthetic
dataflow of chapter 5. Seconds are of processor time, but in a time box. Plans are compared in profit, beside what the exact
model proves that no plan exceeds. Eqs. 4.4 to 4.7 are compared with a plain loop.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from _common import Report, interleaved, main, progress

from elastream.core.frames import Floats
from elastream.core.qos import FlowNetwork, flows
from elastream.policies.look_ahead.planner import look_ahead
from elastream.policies.value_cost.greedy import adapted, deployed
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem, score
from elastream_papers.search.genetic import Evolved, GeneticSettings, evolved
from elastream_papers.search.proven import optimum
from elastream_papers.thesis.deployed import problem_at
from elastream_papers.thesis.lookahead import experiment as ahead
from elastream_papers.thesis.plain_flows import plainly
from elastream_papers.thesis.reactive import experiment as reactive

HALF_DAY = 144  # of five minutes: twelve hours
LOOP_BAR = 1 / 20
STAGES, WIDTH = 10, 3
"""Of the synthetic dataflow of Fig. 5.2: each operator of a stage sends to each of the next."""
LOOP_ROUNDS, LOOP_QUICK = 41, 11


def compared(report: Report, *, quick: bool) -> None:
    rng = np.random.default_rng(1)
    count = STAGES * WIDTH
    first = [WIDTH * stage for stage in range(STAGES - 1)]
    edges = [(at + a, at + WIDTH + b) for at in first for a in range(WIDTH) for b in range(WIDTH)]
    parts = [1 / WIDTH] * len(edges)
    sources, outputs = list(range(WIDTH)), list(range(count - WIDTH, count))
    rates = rng.uniform(2.0, 75.0, (HALF_DAY, WIDTH))
    costs, selectivities = rng.uniform(0.1, 1.0, count), rng.uniform(0.8, 1.2, count)
    capacity, queues = rng.uniform(5.0, 40.0, (HALF_DAY, count)), rng.uniform(0.0, 100.0, count)
    network = FlowNetwork(count, np.array(edges), np.array(parts), np.array(sources), np.array(outputs))
    plain = (edges, parts, sources, outputs, rates.tolist(), costs.tolist(), selectivities.tolist(), capacity.tolist())
    ratios, loops, vectors = [], [], []
    for _ in range(LOOP_QUICK if quick else LOOP_ROUNDS):
        began = time.process_time()
        one = plainly(*plain, queues.tolist(), 300.0)
        between = time.process_time()
        for _ in range(10):
            other = flows(network, rates, costs, selectivities, capacity, queues, 300.0)
        ended = time.process_time()
        loops.append(between - began)
        vectors.append((ended - between) / 10)
        ratios.append(vectors[-1] / loops[-1])
    apart = float(np.abs(other.relative - np.array(one.relative)).max())
    report.figures["throughput"] = {
        "instants": HALF_DAY,
        "operators": count,
        "loop_seconds": statistics.median(loops),
        "vectorised_seconds": statistics.median(vectors),
        "ratio": statistics.median(ratios),
    }
    report.at_most("difference of Eqs. 4.4 to 4.7 from a plain loop", apart, 1e-9)
    report.median_at_most("Eqs. 4.4 to 4.7 over 144 instants, of a plain loop", ratios, LOOP_BAR)


SMALL, LARGE = 800, 8_000  # mean reports/s of the two plans of CE: ten times as many
GROWTH, HUNDREDTH, CONVERGED, STEPS = 12.0, 0.01, 0.98, 20.0
"""Bars: CE at the one rate over the other; CE over the genetic search; that within its time box over ten boxes; PLAStiCC
over a round of CE."""
EQUAL = (50, 500, 2_000)  # rates at which CE and the genetic search plan
BOXED = (50, 200)  # rates at which the time box is tried
BOX = 10.0  # seconds of the time box: less than the time between two rounds of any policy
INSTANTS = 14  # steps that PLAStiCC looks ahead
SEED = 1


@dataclass(frozen=True)
class Size:
    """How much is measured: rounds of a ratio, seeds of the genetic search, seconds of its box and of the exact model."""

    rounds: int
    seeds: int
    box: float
    proof: float


FULL, QUICK = Size(15, 3, BOX, 60.0), Size(5, 1, BOX / 2, 10.0)


def road(rate: int) -> tuple[Problem, Conditions]:
    return problem_at(reactive.site_of(rate, reactive.NONE, SEED, reactive.ReactiveAssumptions()))


def timed(work: Callable[[], Any]) -> Callable[[], float]:
    def seconds() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return seconds


def growth(report: Report, size: Size) -> None:
    large, small = road(LARGE), road(SMALL)
    deployed(*small)  # imports and compilation, which happen once, do not count
    sides = interleaved(timed(lambda: deployed(*large)), timed(lambda: deployed(*small)), size.rounds, "CE's growth")
    report.figures["growth of ce"] = sides.figures(f"{LARGE} reports/s", f"{SMALL} reports/s")
    report.median_at_most(f"CE at {LARGE} reports/s over CE at {SMALL}", sides.ratios, GROWTH)


def bred(case: tuple[Problem, Conditions], settings: Iterator[GeneticSettings]) -> Evolved:
    return evolved(*case, next(settings))


def beside_genetic(report: Report, size: Size) -> None:
    for rate in EQUAL[:1] if size is QUICK else EQUAL:
        case = road(rate)
        settings = (GeneticSettings(seconds=np.inf, seed=seed) for seed in count())
        sides = interleaved(
            timed(partial(deployed, *case)),
            timed(partial(bred, case, settings)),
            max(3, size.rounds // 3),
            f"CE and GA at {rate} reports/s",
        )
        report.figures[f"ce and ga at {rate}"] = sides.figures("ce", "ga") | earned(case, rate, size)
        report.median_at_most(f"CE over GA at {rate} reports/s", sides.ratios, HUNDREDTH)


def earned(case: tuple[Problem, Conditions], rate: int, size: Size) -> dict[str, Any]:
    problem, conditions = case
    greedy = score(problem, deployed(problem, conditions), conditions)
    evolutions = [evolved(problem, conditions, GeneticSettings(seconds=np.inf, seed=seed)) for seed in range(size.seeds)]
    best = optimum(problem, conditions, seconds=size.proof)
    genetic = [round(each.profit, 3) for each in evolutions]
    progress(f"profit at {rate} reports/s: CE {greedy.profit:.3f}, GA {genetic}, bound {best.bound:.3f}")
    return {
        "profit of ce": greedy.profit,
        "throughput of ce": greedy.mean,
        "profits of ga": [each.profit for each in evolutions],
        "profit of the exact model": best.profit,
        "proven bound": best.bound,
        "proven optimal": best.optimal,
        "seconds of the exact model": best.seconds,
    }


def time_box(report: Report, size: Size) -> None:
    ratios: list[float] = []
    runs = []
    for rate in BOXED[:1] if size is QUICK else BOXED:
        problem, conditions = road(rate)
        for seed in range(size.seeds):
            # The clock limits both, so runs need not be interleaved: each uses all of its time.
            one, ten = (
                evolved(problem, conditions, GeneticSettings(generations=10**6, patience=10**6, seconds=seconds, seed=seed))
                for seconds in (size.box, 10 * size.box)
            )
            ratios.append(one.profit / ten.profit)
            runs.append({"rate": rate, "seed": seed, "one": one.profit, "ten": ten.profit, "generations": one.generations})
            progress(f"time box at {rate} reports/s: {one.profit:.4f} of {ten.profit:.4f}")
    report.figures["time box"] = {"seconds": size.box, "runs": runs, "ratios": ratios}
    report.median_at_least("profit of GA in its time box, of ten boxes", ratios, CONVERGED)


def looking_ahead(report: Report, size: Size) -> None:
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
    report.median_at_most("PLAStiCC, 30 operators and 14 steps, over a round of CE", sides.ratios, STEPS)


def run(options: argparse.Namespace) -> Report:
    report, size = Report(), QUICK if options.quick else FULL
    parts: Sequence[Callable[[Report, Size], None]] = (growth, beside_genetic, time_box, looking_ahead)
    for part in parts:
        part(report, size)
    compared(report, quick=options.quick)
    return report


if __name__ == "__main__":
    main("value_cost", __doc__, run)
