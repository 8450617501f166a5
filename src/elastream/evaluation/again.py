"""Simulation of a recorded run's load, under its own decisions or a policy's.

`drift` compares the result with the recording.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from elastream.control.loop import Loop
from elastream.control.replaying import guarding_again
from elastream.core.plant import Policy
from elastream.dataflow.stages import Layout
from elastream.recording.guard_log import GuardVersion
from elastream.recording.observer import Ending, describe_run
from elastream.recording.recorder import Collector, Recording
from elastream.simulator import Calibration, recorded_plant, replay

# time limit, as a multiple of the recorded run's length
LIMIT = 2.0


def constants_for(recording: Recording, own: Calibration, other: Calibration) -> Calibration:
    """Return `other`'s constants with the host types and settings of `recording`.

    A host type that the other run lacks gets its first type's figures.
    """
    started = {kind.name: kind for kind in other.host_types}
    first = other.host_types[0]
    kinds = tuple(
        replace(kind, start=started.get(kind.name, first).start, stop=started.get(kind.name, first).stop)
        for kind in recording.host_types
    )
    mine = own.settings
    settings = replace(
        other.settings,
        monitor=mine.monitor,
        batch_seconds=mine.batch_seconds,
        batch_interval=mine.batch_interval,
        state_partitions=mine.state_partitions,
    )
    return replace(other, settings=settings, host_types=kinds, loads=own.loads, origin=own.origin)


def simulated_again(
    recording: Recording,
    layout: Layout,
    calibration: Calibration,
    policy: Policy | None,
    seed: int,
    guards: Sequence[GuardVersion],
) -> Recording:
    """Simulate the load of `recording` under `policy`, or the recorded decisions."""
    header = recording.header
    plant = recorded_plant(
        recording,
        layout,
        calibration,
        seed=seed,
        target_latency=header.target_latency,
        max_hosts=header.max_hosts,
    )
    collector = Collector()
    if policy is None:
        collector.started(describe_run(plant.context, policy=header.policy, plant="simulated", started=0.0))
        replay(recording, plant, calibration.origin, collector.observed)
        collector.ended(Ending("finished", plant.time, ledger=tuple(plant.ledger)))
    else:
        period = header.environment.get("period")
        monitor = calibration.settings.monitor
        # The loop looks when a monitoring period ends, so that what it sees is as fresh as on Spark.
        plant.advance(monitor * round((float(recording.times[0]) - calibration.origin) / monitor))
        Loop(
            plant,
            policy,
            monitor=monitor,
            period=_period(recording) if period is None else float(period),
            observers=[collector],
            limit=LIMIT * recording.end,
            extensions=guarding_again(recording, guards, plant.clock.now, calibration.origin),
        ).run()
    return collector.recording


def _period(recording: Recording) -> float:
    times = [decision.time for decision in recording.decisions]
    return float(np.median(np.diff(times))) if len(times) > 1 else 2.0
