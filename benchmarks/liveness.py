"""Every policy that sizes anything, on random dataflows, loads, prices and start times, simulated: does it act?

python benchmarks/liveness.py [--quick] [--cases N] [--first SEED] [--policy NAME] [--json FILE]

5,000 cases take about half an hour on two free cores, --quick (200) about a minute and a half. The first that fail are
printed with their seeds; `elastream.experiments.liveness.tried(scenarios.LivenessCase(SEED, POLICY, FUSED))` replays one.
"""

import argparse
import os
from collections import Counter

from _common import Report, main, progress

from elastream.experiments.cases import run_all
from elastream.experiments.liveness import tried
from elastream.experiments.scenarios import POLICIES, LivenessCase, cases

CASES, QUICK = 5000, 200


def measure(arguments: argparse.Namespace) -> Report:
    number = arguments.cases or (QUICK if arguments.quick else CASES)
    chosen = cases(number, arguments.first, arguments.policy or tuple(POLICIES))

    def done(case: LivenessCase, count: int, all_of_them: int) -> None:
        if count % 100 == 0 or count == all_of_them:
            progress(f"{count} of {all_of_them} cases")

    found, seconds = run_all(tried, chosen, os.cpu_count() or 1, done, tried)
    report = Report()
    silent = [each for each in found if each.silent]
    broken = [each for each in found if each.broken]
    for name, failing in (("silent", silent), ("broken", broken)):
        for each in failing[:3]:
            progress(f"{name}: {each.case!r}: {each.silent} silent rounds; {'; '.join(each.broken)}")
    report.figures = {
        "cases": len(found),
        "seconds": round(seconds, 1),
        "silent rounds": sum(each.silent for each in found),
        "cases by policy": dict(Counter(each.case.policy for each in found)),
        "silent cases": [str(each.case) for each in silent],
        "silent cases by policy": dict(Counter(each.case.policy for each in silent)),
        "refused in one sentence": sum(bool(each.refused) for each in found),
        "other properties broken": {str(each.case): each.broken for each in broken},
        "cases broken by policy": dict(Counter(each.case.policy for each in broken)),
        "promised and unknown": {str(each.case): each.unpromised for each in found if each.unpromised},
    }
    report.at_most("silent rounds under overload", report.figures["silent rounds"], 0, "issue 13")
    report.at_most("cases with a metric promised and unknown", len(report.figures["promised and unknown"]), 0, "issue 13")
    return report


def line(report: Report) -> str:
    figures, silent, broken = report.figures, report.figures["silent cases"], report.figures["other properties broken"]
    return (
        f"{figures['cases']} random cases, simulated, in {figures['seconds']:.0f} s: "
        f"{figures['silent rounds']} silent rounds in {len(silent)} cases {figures['silent cases by policy']}, "
        f"another property broken in {len(broken)} {figures['cases broken by policy']}, "
        f"{figures['refused in one sentence']} refused"
    )


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", type=int, metavar="N", help="how many, in place of 5,000")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first")
    parser.add_argument("--policy", action="append", choices=tuple(POLICIES), help="only this policy; repeatable")


if __name__ == "__main__":
    main("liveness", __doc__.splitlines()[0], measure, line, more)
