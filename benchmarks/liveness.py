"""Check that every policy that sizes hosts or instances acts, on random simulated dataflows, loads, prices and start times.

40 minutes of CPU; --quick under two. With --kept, FILE stores each result for reuse by the same code. The first failures
are printed; `elastream_papers.liveness.runs.tried(scenarios.LivenessCase(SEED, POLICY, FUSED))` replays one.
"""

import argparse
from collections import Counter
from pathlib import Path

from _common import Report, counting, main, progress

from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.trials import cores
from elastream_papers.liveness.runs import CaseResult, tried
from elastream_papers.liveness.scenarios import POLICIES, cases

CASES, QUICK = 5000, 200
KINDS = ("still acts", "records wait", "latency is", "hosts at the end", "which is known", "fault at")
"""What tells the properties apart, in the sentences that say what is broken."""


def measure(arguments: argparse.Namespace) -> Report:
    number = arguments.cases or (QUICK if arguments.quick else CASES)
    chosen = cases(number, arguments.first, arguments.policy or tuple(POLICIES))
    options = ExperimentOptions(workers=arguments.workers, progress=counting(100, "cases"), resume=arguments.kept)
    results, _ = run_all(tried, chosen, options, str, tried)
    return report_of(results)


def report_of(found: list[CaseResult]) -> Report:
    silent = [each for each in found if each.silent]
    broken = [each for each in found if each.broken]
    for name, failing in (("silent", silent), ("broken", broken)):
        for each in failing[:3]:
            progress(f"{name}: {each.case!r}: {each.silent} silent rounds; {'; '.join(each.broken)}")
    report = Report()
    report.figures = {
        "cases": len(found),
        "seeds": f"{found[0].case.seed} to {found[-1].case.seed}",
        "silent rounds": sum(each.silent for each in found),
        "cases by policy": dict(Counter(each.case.policy for each in found)),
        "silent cases": [str(each.case) for each in silent],
        "silent cases by policy": dict(Counter(each.case.policy for each in silent)),
        "refused in one sentence": sum(bool(each.refused) for each in found),
        "other properties broken": {str(each.case): each.broken for each in broken},
        "cases broken by policy": dict(Counter(each.case.policy for each in broken)),
        "cases broken by property": dict(Counter(kind for each in broken for kind in {kind_of(s) for s in each.broken})),
        "promised and unknown": {str(each.case): each.unpromised for each in found if each.unpromised},
    }
    report.at_least("cases", len(found), CASES)
    report.at_most("silent rounds under overload", report.figures["silent rounds"], 0)
    unknown = len(report.figures["promised and unknown"])
    report.at_most("cases with a metric promised and unknown", unknown, 0)
    report.at_most("cases in which another property is broken", len(broken), 0)
    return report


def kind_of(sentence: str) -> str:
    return next((kind for kind in KINDS if kind in sentence), sentence)


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, metavar="N", help="how many, in place of 5,000")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first")
    parser.add_argument("--policy", action="append", choices=tuple(POLICIES), help="only this policy; repeatable")
    parser.add_argument("--kept", type=Path, metavar="FILE", help="keep what came of each case, and go on from there")
    parser.add_argument("--workers", type=int, default=cores(), metavar="N", help="processes; all cores if not given")


if __name__ == "__main__":
    main("liveness", __doc__, measure, more)
