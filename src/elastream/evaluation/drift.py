"""Comparison of a recorded run with its simulation, calibrated by that run.

Recorded decisions test the plant; a policy's own test its decisions. Figures are medians.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from elastream.control.loop import Loop
from elastream.control.replaying import guarding_again
from elastream.core.frames import Floats
from elastream.core.hosts import HostState
from elastream.core.metrics import Metric
from elastream.core.plant import Policy
from elastream.core.wording import percent_off
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Delivery, Edge, Kind, Operator
from elastream.dataflow.stages import Layout, lay_out
from elastream.errors import ElastreamError, InputError
from elastream.evaluation.findings import Check, Findings, environment
from elastream.evaluation.page import Block, Heading, Page, Prose, Table
from elastream.recording.guard_log import GuardVersion
from elastream.recording.observer import Ending, describe_run
from elastream.recording.recorder import Collector, Recording
from elastream.report.plots import Curve, Plot
from elastream.simulator import Calibration, Drift, calibrate, drift_of, recorded_plant, replay

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
        # The loop observes at the end of a monitoring period, so that observations are as recent as on Spark.
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


def calibration_of(recording: Recording, place: str) -> tuple[Calibration, Layout]:
    """Return the calibration by a run on Spark, and its dataflow.

    Raises:
        InputError: Simulated run, no micro-batches, too short, or several queries.
    """
    header = recording.header
    if header.plant != "spark":
        raise InputError(f"{place} is a {header.plant} run: calibration needs a run on Spark")
    if not recording.batches:
        raise InputError(f"{place} has no micro-batches: calibration needs them")
    layout = lay_out(_graph(recording, place))
    seconds = header.environment.get("batch seconds")
    try:
        calibration = calibrate(
            recording, layout, recording.host_types, batch_seconds=None if seconds is None else float(seconds)
        )
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return calibration, layout


# Keys of an operator in a header that are none of its fields.
OF_HEADERS = ("values", "governed")


def _graph(recording: Recording, place: str) -> Graph:
    header = recording.header
    try:
        operators = tuple(
            Operator(
                **{
                    **{name: value for name, value in each.items() if name not in OF_HEADERS},
                    "kind": Kind(each["kind"]),
                    "alternates": tuple(Alternate(name) for name in each["alternates"]),
                    "selects": (selects := tuple(each.get("selects", ()))),
                    "key": selects or ("key",) if each["kind"] == Kind.KEYED else (),
                }
            )
            for each in header.operators
        )
        edges = tuple(Edge(**{**each, "delivery": Delivery(each["delivery"])}) for each in header.edges)
        return Graph(header.flow, operators, edges)
    except (KeyError, TypeError, ValueError, ElastreamError) as error:
        raise InputError(f"{place} does not describe a valid dataflow: {error}") from None


# largest drift of a figure in `JUDGED` that counts as agreement
BOUND = 0.20
JUDGED = ("latency p50", "backlog, mean", "host time")
RECORDED = "the recorded decisions"
# seconds in which a new host works off the queue, in runs of minutes
NEW = 15.0
PHASES = ("hosts as they were", "hosts on their way", f"hosts that came less than {NEW:.0f} s ago")


@dataclass
class PhaseTotals:
    batches: int = 0
    seconds: float = 0.0
    records: float = 0.0
    backlog: float = 0.0


@dataclass(frozen=True)
class Way:
    """Repeated simulations under one decision maker."""

    decided: str
    runs: tuple[Recording, ...]
    drifts: tuple[tuple[Drift, ...], ...]

    def figure(self, number: int) -> Drift:
        values = self.values(number)
        return replace(self.drifts[0][number], simulated=float(np.median(values)))

    def values(self, number: int) -> Floats:
        return np.array([drifts[number].simulated for drifts in self.drifts])

    @property
    def shown(self) -> Recording:
        backlog = [drift.metric for drift in self.drifts[0]].index("backlog, mean")
        values = self.values(backlog)
        return self.runs[int(np.argsort(values)[len(values) // 2])]


@dataclass(frozen=True)
class Replayed:
    """Recorded run and its simulations; the first follows the recorded decisions."""

    measured: Recording
    source: Recording
    calibration: Calibration
    ways: tuple[Way, ...]

    @property
    def checks(self) -> tuple[Check, ...]:
        checks = []
        for number, drift in enumerate(self.ways[0].drifts[0]):
            if drift.metric in JUDGED:
                relative = self.ways[0].figure(number).relative
                checks.append(
                    Check(
                        f"drift of {drift.metric}",
                        "unknown" if math.isnan(relative) else round(relative, 4),
                        f"within {BOUND:.0%}",
                        abs(relative) <= BOUND,
                        f"this run, under {RECORDED}",
                    )
                )
        return tuple(checks)

    def table(self) -> Table:
        header = ["figure", "measured on Spark"]
        for way in self.ways:
            header += [f"simulated, {way.decided}", "quartiles", "drift"]
        rows, good = [], []
        for number, first in enumerate(self.ways[0].drifts[0]):
            row = [f"{first.metric}, {first.unit}" if first.unit else first.metric, _short(first.measured)]
            for way in self.ways:
                drift = way.figure(number)
                low, high = np.quantile(way.values(number), (0.25, 0.75))
                row += [_short(drift.simulated), f"{_short(low)} to {_short(high)}", percent_off(drift.relative)]
            rows.append(tuple(row))
            relative = self.ways[0].figure(number).relative
            good.append(abs(relative) <= BOUND if first.metric in JUDGED else None)
        runs = len(self.ways[0].runs)
        caption = f"{self.measured.header.flow}: {runs} simulations each, their median beside what was measured"
        return Table(caption, tuple(header), tuple(rows), tuple(good))

    def constants(self) -> Table:
        rows = tuple((each.name, f"{each.value:.4g}", each.unit, each.source) for each in self.calibration.constants)
        return Table("What was taken from the recording", ("constant", "value", "unit", "from"), rows)

    def phases(self) -> Table:
        rows = [
            (
                name,
                *(_short(of.seconds / of.batches if of.batches else math.nan) for of in both),
                *(_short(of.records / of.batches if of.batches else math.nan) for of in both),
                *(_short(of.backlog) for of in both),
            )
            for name, both in self._phases.items()
        ]
        pair = ("measured", "simulated")
        header = ("phase", *(f"{what}, {who}" for what in ("batch s", "records a batch", "backlog") for who in pair))
        return Table(f"Batches, and what each phase adds to the mean backlog, under {RECORDED}", header, tuple(rows))

    @cached_property
    def _phases(self) -> dict[str, tuple["PhaseTotals", "PhaseTotals"]]:
        measured, simulated = (
            self._in_phases(run, shift)
            for run, shift in ((self.measured, 0.0), (self.ways[0].shown, self.calibration.origin))
        )
        return {name: (measured[name], simulated[name]) for name in measured}

    def _in_phases(self, run: Recording, shift: float) -> dict[str, "PhaseTotals"]:
        begins = self.measured.batches[0].start
        ready = [
            (lease.since, lease.ready_at() or self.measured.end) for lease in self.measured.hosts if lease.since > begins
        ]

        def phase(time: float) -> str:
            if any(since <= time < came for since, came in ready):
                return PHASES[1]
            return PHASES[2] if any(came <= time < came + NEW for _, came in ready) else PHASES[0]

        totals = {name: PhaseTotals() for name in PHASES}
        backlog = np.nan_to_num(np.sum([run.operator(name, Metric.BACKLOG) for name in self.measured.sources], axis=0))
        for time, queued in zip(run.times + shift, backlog.tolist(), strict=True):
            totals[phase(time)].backlog += queued / len(run.times)
        for batch in run.batches:
            if batch.records > 0:
                of = totals[phase(batch.start + shift)]
                of.batches, of.seconds, of.records = of.batches + 1, of.seconds + batch.seconds, of.records + batch.records
        return totals

    @property
    def verdict(self) -> str:
        """Return the figures that agree, and explain the others."""
        missed = [check for check in self.checks if check.missed]
        if not missed:
            return f"Under {RECORDED}, {', '.join(JUDGED)} are all within {BOUND:.0%} of what was measured."
        names = [check.name.removeprefix("drift of ") for check in missed]
        sentences = [f"Under {RECORDED}, {' and '.join(names)} differ by more than {BOUND:.0%} from what was measured."]
        metrics = [drift.metric for drift in self.ways[0].drifts[0]]
        for name in names:
            values = self.ways[0].values(metrics.index(name))
            measured = self.ways[0].drifts[0][metrics.index(name)].measured
            if values.min() <= measured <= values.max():
                sentences.append(
                    f"For {name} chance accounts for that: the same constants give {_short(values.min())} to "
                    f"{_short(values.max())}, depending on which batches happen to be long."
                )
        if "backlog, mean" in names:
            name, (measured_part, simulated_part) = max(
                self._phases.items(), key=lambda each: abs(each[1][0].backlog - each[1][1].backlog)
            )
            sentences.append(
                f"Most of the difference in backlog arises with {name}: that phase adds {_short(measured_part.backlog)} to "
                f"the measured mean and {_short(simulated_part.backlog)} to the simulated one."
            )
        return " ".join([*sentences, self.evidence])

    @property
    def evidence(self) -> str:
        peace, batches = self.calibration.in_peace, [b for b in self.source.batches if b.records > 0]
        calm = math.fsum(batches[number].seconds for number in peace)
        whole = math.fsum(batch.seconds for batch in batches)
        return (
            f"The costs of a batch and of a record are those of {len(peace)} of {len(batches)} batches, {calm / whole:.0%} "
            "of the time that all took; the others ran while hosts were on their way, had just come or loaded moved state, "
            "and are represented by one constant for each of these."
        )

    def outcome(self) -> Findings:
        figures = {
            "dataflow": self.measured.header.flow,
            "policy": self.measured.header.policy,
            "drift": {
                way.decided: {
                    drift.metric: {
                        "measured": _plain(drift.measured),
                        "simulated": _plain(way.figure(number).simulated),
                        "runs": [_plain(value) for value in way.values(number).tolist()],
                        "relative": _plain(way.figure(number).relative),
                        "unit": drift.unit,
                    }
                    for number, drift in enumerate(way.drifts[0])
                }
                for way in self.ways
            },
            "constants": {
                each.name: {"value": each.value, "unit": each.unit, "from": each.source}
                for each in self.calibration.constants
            },
            "not in the recording": list(self.calibration.unknown),
            "verdict": self.verdict,
        }
        about = {key: value for key, value in self.measured.header.environment.items() if key != "directory"}
        return Findings(figures, {}, self.checks, self._page(), environment(plant="simulated", measured=about))

    def _page(self) -> Page:
        about = self.measured.header.environment
        where = ", ".join(f"{key} {about[key]}" for key in ("spark", "machine", "cores") if key in about)
        blocks: list[Block] = [
            Prose(f"Measured: a run of {self.measured.end:.0f} s under {self.measured.header.policy} ({where})."),
            Prose(
                "Simulated: the load of that run, on the simulator with the constants below, which were estimated from "
                f"{'the same' if self.source is self.measured else 'another'} run; none was chosen by what it does to the "
                "drift. "
                f"Under {RECORDED} the drift is the simulated plant's; with a policy deciding, also that of its decisions."
            ),
            Prose(self.verdict),
            self.table(),
            Heading("Over time"),
            *self._plots(),
            Heading("What was calibrated"),
            self.constants(),
        ]
        if self.calibration.unknown:
            blocks.append(Prose(f"The recording could not say: {'; '.join(self.calibration.unknown)}."))
        blocks += [Heading("Evidence"), Prose(self.evidence), self.phases(), self._decisions()]
        return Page(f"{self.measured.header.flow}: measured and simulated", tuple(blocks))

    def _plots(self) -> list[Plot]:
        shown = [("measured on Spark", self.measured, 0.0)]
        shown += [(f"simulated, {way.decided}", way.shown, self.calibration.origin) for way in self.ways]

        def hosts(run: Recording) -> Floats:
            return np.asarray(run.host_count()[HostState.RUNNING] + run.host_count()[HostState.DRAINING])

        def backlog(run: Recording) -> Floats:
            return np.asarray(np.sum([run.operator(name, Metric.BACKLOG) for name in self.measured.sources], axis=0))

        def plot(caption: str, unit: str, values: Callable[[Recording], Floats], steps: bool) -> Plot:
            lines = tuple(
                Curve(
                    name,
                    (run.times + shift).tolist(),
                    values(run).tolist(),
                    colour=(5, 0, 1, 3, 4)[number % 5],
                    steps=steps,
                    fill=number == 0,
                )
                for number, (name, run, shift) in enumerate(shown)
            )
            return Plot(caption, "seconds", unit, lines)

        return [
            plot("Latency, median of the last batches", "s", lambda run: run.application(Metric.LATENCY_P50), False),
            plot("Backlog at the source", "records", backlog, False),
            plot("Hosts that take tasks", "hosts", hosts, True),
        ]

    def _decisions(self) -> Table:
        rows = [("measured", *_done(self.measured, 0.0))]
        rows += [(f"simulated, {way.decided}", *_done(way.shown, self.calibration.origin)) for way in self.ways[1:]]
        return Table("When hosts were leased and drained, seconds of the run", ("", "leased at", "drained at"), tuple(rows))


def replayed(
    recording: Recording,
    policies: Mapping[str, Policy],
    *,
    source: Recording | None = None,
    place: str = "the recording",
    seed: int = 1,
    runs: int = 7,
    guards: Sequence[GuardVersion] = (),
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Replayed:
    """Simulate a recorded run under its own decisions and each of `policies`, `runs` times each.

    Raises:
        InputError: Unsuitable run, or `source` has another dataflow.
    """
    calibration, layout = calibration_of(recording, place)
    if source is not None:
        other, other_layout = calibration_of(source, "the run to calibrate with")
        if other_layout != layout:
            raise InputError(
                f"{place} is not of the dataflow that the simulator is calibrated with: {source.header.flow!r}"
            )
        calibration = constants_for(recording, calibration, other)
    every = (len(policies) + 1) * runs
    ways, done = [], 0
    for name, policy in ((RECORDED, None), *((f"{name} decides", policy) for name, policy in policies.items())):
        recordings = []
        for number in range(runs):
            progress(name, done, every)
            recordings.append(simulated_again(recording, layout, calibration, policy, seed + number, guards))
            done += 1
        drifts = tuple(drift_of(recording, run, recording.sources, origin=calibration.origin) for run in recordings)
        ways.append(Way(name, tuple(recordings), drifts))
    progress("done", every, every)
    return Replayed(recording, source or recording, calibration, tuple(ways))


def _done(run: Recording, shift: float) -> tuple[str, str]:
    times: dict[str, list[str]] = {"LeaseHost": [], "DrainHost": []}
    for decision in run.decisions:
        for outcome in decision.done:
            if (kind := type(outcome.action).__name__) in times:
                times[kind].append(f"{decision.time + shift:.0f}")
    return ", ".join(times["LeaseHost"]) or "never", ", ".join(times["DrainHost"]) or "never"


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _short(value: float) -> str:
    if math.isnan(value):
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
