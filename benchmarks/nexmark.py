"""Events a second that one core makes.

python benchmarks/nexmark.py [--quick] [--json FILE]
"""

import time

from _common import Report, main_of_parts, with_median

from elastream.bench.nexmark.events import KINDS, Events

SOURCE = "the project's bar for the benchmark's generator"


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


if __name__ == "__main__":
    main_of_parts("nexmark", __doc__, {"events": measure_events})
