"""Service level and cost of the demo: `make demo`, several times. 21 minutes on two free cores; --quick four.

The static peak is the cost of the peak's hosts over the whole run.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import Report, in_random_order, main, with_median

from elastream.recording.recorder import Recording
from elastream.report.summary import Summary, summarise

DEMO = Path(__file__).parents[1] / "examples" / "word_count.py"
SOURCE = "the project's bar for the demo"
LEVEL = 0.95


def one_run() -> Summary:
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        command = [sys.executable, "-c", "from elastream.cli import main; main()", "run", str(DEMO), "--no-live"]
        subprocess.run([*command, "--runs", folder], check=True, stdout=subprocess.DEVNULL)
        (recording,) = Path(folder).glob("*/recording.jsonl")
        return summarise(Recording.read(recording))


def measure(arguments: argparse.Namespace) -> Report:
    rounds = arguments.rounds
    runs = in_random_order(["demo"], rounds, lambda _: one_run())["demo"]
    report = Report()
    for name, values in {
        "of the time within the target": [run.within_target for run in runs],
        "of the records within the target": [run.records_within_target for run in runs],
        "99th percentile of latency, s": [run.latency_p99 for run in runs],
        "cost": [run.cost for run in runs],
        "cost of the static peak": [run.static_cost for run in runs],
        "hosts at most": [float(run.peak_hosts) for run in runs],
    }.items():
        report.figures[name] = values[0] if rounds == 1 else with_median(values)
    report.median_at_least("part of the time within the target", [run.within_target for run in runs], LEVEL, SOURCE)
    report.median_at_least(
        "part of the records within the target", [run.records_within_target for run in runs], LEVEL, SOURCE
    )
    shares = [run.cost / run.static_cost for run in runs]
    report.median_at_most("cost over that of hosts for the peak throughout", shares, 1.0, SOURCE)
    return report


if __name__ == "__main__":
    main("demo", __doc__, measure, rounds=5)
