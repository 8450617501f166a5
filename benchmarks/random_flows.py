"""The default policy beside the best constant fleet, on random dataflows of one or several queries, simulated. 12 minutes.

Dataflows, costs, loads, prices, starts and targets follow from seeds that no rule was made with. Fleets are tried one by
one: the smallest with 99 % in time is the best in hindsight.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from _common import Report, counting, main

from elastream import Alternate, Dataflow, HostType, simulate
from elastream.core.hosts import Billing
from elastream.core.plant import Policy
from elastream.dataflow.builder import Stream
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.errors import ElastreamError
from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.trials import cores
from elastream.loads import constant, ramp, sine, steps
from elastream.policies import Horizon, Static, Threshold

CASES, QUICK, FIRST = 40, 4, 1000
IN_TIME, MOST_HOSTS = 0.99, 60
# Queries: one behind the other, two behind one, or side by side.
SHAPES = ("one", "chain of 2", "chain of 3", "fan", "side by side")


@dataclass(frozen=True)
class FlowResult:
    """In time and cost of each policy, and of the best constant fleet; without one if none of `MOST_HOSTS` suffices."""

    case: str
    shape: str
    ways: dict[str, tuple[float, float]]
    fixed: float | None


def run_flow(seed: int) -> FlowResult:
    draw = random.Random(seed)
    shape = SHAPES[seed % len(SHAPES)]
    work, width, start = 10 ** draw.uniform(-4, -2.3), draw.choice((1.0, 2.0, 4.0)), draw.choice((15.0, 30.0, 60.0))
    billing, target = draw.choice((Billing(1.0, 60.0), Billing(60.0))), draw.choice((10.0, 20.0, 30.0, 60.0))
    types = [
        HostType(f"t{size}", width * size, 4000.0, price=size * draw.uniform(0.9, 1.1), billing=billing, start=start)
        for size in draw.choice(((1,), (1,), (1, 2)))
    ]
    kind, load = load_of(draw, draw.uniform(1.5, 8.0) * width / work)
    flow = flow_of(draw, shape, work, load)

    def run(policy: Policy, kinds: Sequence[HostType]) -> tuple[float, float]:
        found = simulate(
            flow, policy, host_types=kinds, fused=True, target_latency=target, max_hosts=MOST_HOSTS, show=False
        ).trials[0]
        return found.compliance or 0.0, found.cost

    ways = {each.name: run(each, types) for each in (Horizon(in_time=IN_TIME), Threshold())}
    fleets = (run(Static(hosts), types[:1]) for hosts in range(1, MOST_HOSTS))
    fixed = next((cost for share, cost in fleets if share >= IN_TIME), None)
    case = f"{seed}: {shape}, {kind}, target {target:g} s, start {start:g} s"
    return FlowResult(case, shape, ways, fixed)


def load_of(draw: random.Random, peak: float) -> tuple[str, ArrivalPattern]:
    low = peak * draw.uniform(0.1, 0.4)
    kind = draw.choice(("steps", "sine", "ramp", "bursts"))
    if kind == "steps":
        return kind, steps((low, 300), (peak, draw.choice((300, 600))), (low, 300), (0.7 * peak, 400), (low, 400))
    if kind == "sine":
        return kind, sine(low, peak, draw.choice((300, 600, 900))).lasting(2400)
    if kind == "ramp":
        rise, fall = ramp(low, peak, over=480), ramp(peak, low, over=300)
        return kind, rise.then(constant(peak, lasts=300)).then(fall).then(constant(low, lasts=600))
    load = constant(low, lasts=120)
    for _ in range(6):
        load = load.then(constant(peak, lasts=draw.uniform(40, 150))).then(constant(low, lasts=draw.uniform(120, 400)))
    return kind, load


def flow_of(draw: random.Random, shape: str, work: float, load: ArrivalPattern) -> Dataflow:
    flow = Dataflow("random")
    several = {"one": 1, "chain of 2": 2, "side by side": 2}.get(shape, 3)
    parts = [draw.uniform(0.1, 1.0) for _ in range(several)]
    keyed = draw.random() < 0.5

    def working(stream: Stream, number: int, *, last: bool = True) -> Stream:
        way = Alternate("it", str.lower, cost=work * parts[number] / sum(parts))
        mapped = stream.map([way], returns="value string", name=f"o{number}")
        return mapped.key_by("value").count(cost=0.05 * work, name=f"k{number}") if keyed and last else mapped

    if shape == "side by side":
        for number in range(several):
            working(flow.source(None, load=load, name=f"s{number}"), number).sink(None)
        return flow
    stream = flow.source(None, load=load, name="s")
    if shape == "fan":
        stream = working(stream, 0, last=False).durable()
        for number in (1, 2):
            working(stream, number).sink(None)
        return flow
    for number in range(several):
        last = number == several - 1
        stream = working(stream, number, last=last)
        stream = stream if last else stream.durable()
    stream.sink(None)
    return flow


def measure(arguments: argparse.Namespace) -> Report:
    number = arguments.cases or (QUICK if arguments.quick else CASES)
    options = ExperimentOptions(workers=cores(), progress=counting(4, "dataflows"))
    results, _ = run_all(run_flow, list(range(arguments.first, arguments.first + number)), options, str, run_flow)
    return report_of([each for each in results if each.fixed is not None])


def report_of(found: list[FlowResult]) -> Report:
    if not found:
        raise ElastreamError("no constant fleet keeps any of the dataflows in time")
    report = Report()
    groups: dict[str, Callable[[FlowResult], bool]] = {
        "one query": lambda each: each.shape == "one", "several queries": lambda each: each.shape != "one"
    }  # fmt: skip
    for group, belongs in groups.items():
        for policy in ("horizon", "threshold"):
            ways = [(each.ways[policy], each.fixed or 1.0) for each in found if belongs(each)]
            if not ways:
                continue
            report.figures[f"{group}, {policy}"] = {
                "dataflows": len(ways),
                "mean in time": fmean(share for (share, _), _ in ways),
                "with 99 % in time": sum(share >= IN_TIME for (share, _), _ in ways),
                "cost over the best constant fleet": fmean(cost / fixed for (_, cost), fixed in ways),
            }
        if mine := report.figures.get(f"{group}, horizon"):
            report.at_most(f"cost over the best constant fleet, {group}", mine["cost over the best constant fleet"], 1.0)
            report.at_least(f"mean in time, {group}", mine["mean in time"], IN_TIME)
    report.figures["cases"] = {each.case: {**each.ways, "fixed": each.fixed} for each in found}
    return report


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, metavar="N", help=f"how many, in place of {CASES}")
    parser.add_argument("--first", type=int, default=FIRST, metavar="SEED", help="seed of the first")


if __name__ == "__main__":
    main("random_flows", __doc__, measure, more)
