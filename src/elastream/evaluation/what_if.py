"""Replay of a run's last hour under another policy: `python -m elastream.evaluation.what_if RUN POLICY HOSTS`.

The live page's child. It writes a line of JSON, and ends when its standard input does.
"""

import contextlib
import json
import math
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from elastream.core.latency import spread
from elastream.core.plant import Policy, as_policy
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import ElastreamError, InputError, in_one_line
from elastream.evaluation.drift import calibration_of, simulated_again
from elastream.recording.directory import RunDirectory
from elastream.recording.guard_log import GuardLog
from elastream.recording.recorder import Recording

# The last seconds of the run that are compared, and simulations of which the median counts.
WINDOW_S, SEEDS = 3600.0, (1, 2, 3)
LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of the window; NaN where unknown. hosts: mean number; p99: seconds."""

    hosts: float
    cost: float
    in_time: float
    p99: float

    @classmethod
    def of(cls, run: Recording, begin: float, end: float, target: float | None) -> "Outcome":
        arrived = [each for each in run.batches if each.end > begin and each.end - each.oldest <= end and each.records > 0]
        hosts = math.fsum(
            max(0.0, min(end, end if lease.until is None else lease.until) - max(begin, lease.since)) for lease in run.hosts
        )
        cost = run.cost()
        at = np.searchsorted(run.times, [begin, end], side="right") - 1
        spent = cost[at[1]] - (cost[at[0]] if at[0] >= 0 else 0.0) if at[1] >= 0 else math.nan
        records, oldest, newest = np.array([(e.records, e.oldest, e.newest) for e in arrived]).reshape(-1, 3).T
        limit = math.inf if target is None else target
        p99, share, _ = spread(records, oldest, newest, np.array([0.99]), limit).tolist()
        return cls(hosts / max(end - begin, 1e-9), float(spent), math.nan if target is None else share, p99)


def _median_of(outcomes: Sequence[Outcome]) -> Outcome:
    return Outcome(*(median(values) for values in zip(*(asdict(each).values() for each in outcomes), strict=True)))


def what_if(run: Path, policy: Policy, max_hosts: int) -> dict[str, Any]:
    """Return `seconds`, `target`, and an `Outcome` of what `happened`, of the recorded decisions `again`, and `then`.

    Raises:
        InputError: The run calibrates no simulator.
    """
    recording = Recording.read(run)
    if recording.forgotten:
        raise InputError(f"{run.name} keeps only its newest part: a replay needs the run from its beginning")
    calibration, layout = calibration_of(recording, run.name)
    guards = GuardLog(RunDirectory(run).guards).versions
    end, target = float(recording.times[-1]), recording.header.target_latency
    begin = max(calibration.origin, end - WINDOW_S)
    bounded = replace(recording, header=replace(recording.header, max_hosts=max_hosts))

    def simulated(of: Recording, by: Policy | None) -> Outcome:
        runs = (simulated_again(of, layout, calibration, by, seed, guards) for seed in SEEDS)
        times = begin - calibration.origin, end - calibration.origin
        return _median_of([Outcome.of(each, *times, target) for each in runs])

    outcomes = {
        "happened": Outcome.of(recording, begin, end, target),
        "again": simulated(recording, None),
        "then": simulated(bounded, policy),
    }
    return {"seconds": end - begin, "target": target} | {name: asdict(each) for name, each in outcomes.items()}


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(LOWEST_PRIORITY)

    def follow() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    run, text, hosts = sys.argv[1:]
    try:
        policy = as_policy(made(POLICY, *named_in(text, POLICY), References(Path())))
        print(json.dumps(what_if(Path(run), policy, int(hosts))))
    except ElastreamError as error:
        print(json.dumps({"error": in_one_line(error)}))


if __name__ == "__main__":
    main()
