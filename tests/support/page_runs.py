"""Folders of runs for the live page: of the made-up run, or of many hosts, live as long as a context lasts."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from elastream.core.frames import Frame
from elastream.core.hosts import HostState, Lease
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, run_lock, write_manifest
from elastream.recording.recorder import Recorder
from support.example_run import SMALL, example_ending, example_events, example_header


def new_run(root: Path, flow: str = "word_count") -> RunDirectory:
    """Return the folder of a run that has begun."""
    (root / "control").mkdir(parents=True)
    directory = RunDirectory(root)
    write_manifest(directory, Manifest(flow, time.time(), identity={"made": "up"}))
    return directory


def record(recorder: Recorder, events: int | None = None, *, skip: int = 0) -> None:
    """Record events of the made-up run."""
    for event in islice(example_events(), skip, events):
        recorder.observed(event) if isinstance(event, Observation) else recorder.decided(event)


@contextmanager
def live_run(root: Path, events: int | None = None) -> Iterator[tuple[RunDirectory, Recorder]]:
    """Yield a run that this process drives, with `events` recorded; it has died afterwards."""
    directory = new_run(root)
    with run_lock(directory):
        recorder = Recorder(directory.recording)
        recorder.started(example_header())
        record(recorder, events)
        yield directory, recorder


def ended_run(root: Path) -> RunDirectory:
    """Return the folder of the whole made-up run."""
    with live_run(root) as (directory, recorder):
        recorder.ended(example_ending())
    return directory


@contextmanager
def large_run(root: Path, hosts: int, observations: int, every: float) -> Iterator[RunDirectory]:
    """Yield a live run of `observations` with `hosts` hosts."""
    *_, last = (event for event in example_events() if isinstance(event, Observation))
    names = tuple(f"h{number}" for number in range(1, hosts + 1))
    rng = np.random.default_rng(1)
    first = {n: Lease(n, SMALL, 0.0).to(HostState.STARTING, 1.0).to(HostState.RUNNING, 9.0) for n in names}
    directory = new_run(root, "many")
    with run_lock(directory):
        recorder = Recorder(directory.recording)
        recorder.started(replace(example_header(), flow="many"))
        for number in range(1, observations + 1):
            frame = Frame(names, {Metric.CPU: rng.random(hosts), Metric.TASKS: np.full(hosts, 4.0)})
            rate = 1000 + 800 * np.sin(number * every / 3600)
            known = {Metric.ARRIVAL_RATE: rate, Metric.THROUGHPUT: rate, Metric.LATENCY_P99: 1.0, Metric.COST: 0.1 * number}
            application = Frame(last.application.ids, {metric: np.array([value]) for metric, value in known.items()})
            recorder.observed(replace(last, time=number * every, application=application, hosts=frame, leases=first))
        yield directory


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())
