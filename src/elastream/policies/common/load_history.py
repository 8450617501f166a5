"""What a policy has seen of the load: rates and busy cores over time, kept from round to round.

Each sample is read once, when it is new: an observation's history is short and reading it anew every round is slow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Frame, known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.dataflow.operators import Kind
from elastream.policies.common.measures import sum_of, total_of
from elastream.policies.forecasting.trend import Forecast, Surprises

CERTAIN = 1.645
"""Standard errors above what is expected that the hosts can still process when full: one case in twenty is higher."""


@dataclass(frozen=True, slots=True)
class Line:
    """Least squares of busy cores on records/s: cores busy without load, and core-seconds per additional record.

    A micro-batch has a fixed cost: in proportion to records, a light load would overestimate the cost of a record, and a
    step of the load would be answered with too many hosts. Far beyond the rates seen the slope is uncertain, and too few
    hosts would come: there counts the upper bound of the mean response, but no more than in proportion.
    """

    fixed: float
    each: float
    deviation: float
    mean: float
    spread: float
    highest: float
    samples: int

    @classmethod
    def through(cls, rates: Floats, busy: Floats) -> "Line":
        mean, apart = float(rates.mean()), rates - rates.mean()
        spread = float((apart * apart).sum())
        each = float((apart * (busy - busy.mean())).sum() / spread)
        fixed = float(busy.mean()) - each * mean
        rest = busy - fixed - each * rates
        deviation = math.sqrt(float((rest * rest).sum()) / (len(rates) - 2))
        return cls(fixed, each, deviation, mean, spread, float(rates.max()), len(rates))

    def cores(self, rate: float, proportional: float) -> float:
        """Cores busy at `rate`; proportional: the work per record measured, times `rate`."""
        cores = self.fixed + self.each * rate
        if rate <= self.highest:
            return cores
        error = self.deviation * math.sqrt(1 / self.samples + (rate - self.mean) ** 2 / self.spread)
        return max(cores, min(cores + CERTAIN * error, proportional))


ALIKE, AVOIDED = 0.9, 1800.0
"""Part of a rate above which another one is like it; seconds for which hosts that did not suffice are not gone back to."""
NEVER = (0.0, math.inf, -math.inf)
"""What hosts that always sufficed are remembered as."""


@dataclass(frozen=True, slots=True)
class HostTrial:
    """Cores that hosts had when a query fell behind, records/s that it processed with them and cores that were busy, and
    when. vain: how much that more hosts brought since, as a sentence, if it was next to nothing. weak: the same, if it was
    less than half of what they promised."""

    cores: float
    processed: float
    busy: float
    time: float
    vain: str = ""
    weak: str = ""


@dataclass(frozen=True, eq=False)
class Seen:
    """Samples so far, oldest first, shape (6, samples): times, records/s that arrive at and are processed by the sources,
    records/s that the busy cores finish, busy cores, and whether it is warm: the first batches of a run, and of a host,
    start workers and compile code. since: time of the first sample ever. began: that of the first with records processed,
    inf before. needs: (time, cores needed, by part) of earlier rounds. surprises: of the rate that arrives. short: (cores
    that did not suffice, for which rate, when) the last time that a query fell behind, of the alternates and branches that
    run: what others needed says nothing of these. running: which those are. reaches: the most cores that state partitions
    could keep busy, as seen in the last rounds. beyond: rounds in a row in which the rate worked more than that. left: when
    a host was last draining: leases that ended are not observed. trial: what more hosts brought. ended: by query, the end
    of its last micro-batch and how long that took."""

    samples: Floats
    since: float
    began: float = math.inf
    needs: tuple[tuple[float, tuple[float, ...]], ...] = ()
    surprises: Surprises = field(default_factory=Surprises)
    short: tuple[float, float, float] = NEVER
    running: object = None
    reaches: tuple[float, ...] = ()
    beyond: int = 0
    left: float = -math.inf
    trial: HostTrial | None = None
    ended: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def after(cls, before: "Seen | None", observation: Observation, keep: float, warming: float) -> "Seen":
        """`before` and what is new in `observation`, as far as it is at most `keep` seconds old.

        warming: seconds for which a run, or a host that came, is not warm.
        """
        last = -math.inf if before is None else float(before.times[-1])
        frames: list[tuple[float, Frame]] = []
        for sample in reversed(observation.history):
            if sample.time <= last:
                break
            frames.append((sample.time, sample.operators))
        frames.reverse()
        if observation.time > last:
            frames.append((observation.time, observation.operators))
        samples = np.array([*_columns(observation, frames), [0.0] * len(frames)])
        times, worked = samples[0], samples[0][samples[2] > 0]
        began = math.inf if before is None else before.began
        began = min(began, float(worked[0]) if worked.size else math.inf)
        cold = times < began + warming
        for at in observation.came:
            if times.size and at + warming > times[0]:  # as hardly any: most hosts came long ago
                cold |= (times >= at) & (times < at + warming)
        samples[-1] = ~cold
        left = observation.time if observation.draining else -math.inf if before is None else before.left
        ended = {} if before is None else before.ended
        if observation.batches:
            ended = {**ended, **{each.segment: (each.end, each.seconds) for each in observation.batches}}
        running = (observation.composition.alternates, observation.composition.choices, observation.composition.tables)
        if before is not None:
            first = int(np.searchsorted(before.times, observation.time - keep))
            samples = np.concatenate([before.samples[:, first:], samples], axis=1)
            learned = (before.short, running, before.reaches, before.beyond, left, before.trial, ended)
            if running != before.running:
                learned = (NEVER, running, (), 0, left, None, ended)
            return cls(samples, before.since, began, before.needs, before.surprises, *learned)
        return cls(samples, float(samples[0, 0]), began, running=running, left=left, ended=ended)

    @property
    def times(self) -> Floats:
        """When each sample was taken, ascending."""
        found: Floats = self.samples[0]
        return found

    @property
    def arriving(self) -> Floats:
        """Records/s that arrive at the sources."""
        found: Floats = self.samples[1]
        return found

    @property
    def processed(self) -> Floats:
        """Records/s that the sources have processed."""
        found: Floats = self.samples[2]
        return found

    @property
    def finished(self) -> Floats:
        """Source records/s that the busy cores finish in every query: as processed where there is one query."""
        found: Floats = self.samples[3]
        return found

    @property
    def busy(self) -> Floats:
        """Busy cores."""
        found: Floats = self.samples[4]
        return found

    @property
    def warm(self) -> NDArray[np.bool_]:
        """Whether a sample tells what a record works."""
        found: NDArray[np.bool_] = self.samples[5] > 0
        return found

    def needing(self, time: float, cores: tuple[float, ...], settle: float) -> "Seen":
        """This, with the cores that are needed at `time`, and those needed in the `settle` seconds before."""
        kept = tuple(each for each in self.needs if each[0] >= time - settle and len(each[1]) == len(cores))
        needs = (*kept, (time, cores))
        return replace(self, needs=needs)

    def insufficient(self, time: float, rate: float) -> float:
        """Cores that did not suffice for `rate` lately, or for little more; 0 where none did."""
        cores, arrived, when = self.short
        return cores if rate >= ALIKE * arrived and time - when <= AVOIDED else 0.0

    def surprised(self, time: float, forecast: Forecast, horizon: float, pace: float) -> "Seen":
        """This, with what the load did at `time` that was not foreseen."""
        found = self.surprises.after(time, forecast.level, forecast.expected, horizon, pace)
        return replace(self, surprises=found)

    @property
    def highest(self) -> Floats:
        """Most cores needed in any round kept, by part."""
        highest: Floats = np.array([cores for _, cores in self.needs]).max(axis=0)
        return highest


def _columns(observation: Observation, frames: Sequence[tuple[float, Frame]]) -> list[list[float]]:
    """The columns of `Seen`, without the last; busy cores are those of operators that do not wait, and of speed 1."""
    graph = observation.context.graph
    sources = [source.name for source in graph.sources]
    working = [o.name for o in graph.operators if not o.waits]
    several = len(observation.context.layout.segments) > 1
    speed = observation.mean_speed
    operators = [frame for _, frame in frames]
    arriving = [math.fsum(row) for row in _values(operators, Metric.ARRIVAL_RATE, sources)]
    processed = [math.fsum(row) for row in _values(operators, Metric.PROCESSED_RATE, sources)]
    busy = [speed * known_sum(row) for row in _values(operators, Metric.BUSY_CORES, working)]
    finished = processed
    if several:
        each = zip(operators, processed, busy, strict=True)
        finished = [_finished(observation, frame, done, cores, speed) for frame, done, cores in each]
    return [[time for time, _ in frames], arriving, processed, finished, busy]


def _values(frames: Sequence[Frame], metric: Metric, names: Sequence[str]) -> list[list[float]]:
    """The values of `names` in each of `frames`."""
    rows = frames[0].rows if frames else {}
    if len(frames) > 1 and all(frame.rows is rows for frame in frames) and all(name in rows for name in names):
        columns = np.array([frame.column(metric) for frame in frames])
        found: list[list[float]] = columns[:, [rows[name] for name in names]].tolist()
        return found
    return [[frame.value(name, metric) for name in names] for frame in frames]


def _finished(observation: Observation, frame: Frame, processed: float, busy: float, speed: float) -> float:
    """Source records/s that `busy` cores would finish in every query, in the mix that arrives.

    Where one query falls behind and others do not, busy cores over the records that the sources processed say little of the
    work of a record: each query's work is over its own records, and counts for as many as are on their way to it.
    `processed` where a query's figures are unknown.
    """
    layout = observation.context.layout
    by_name = layout.graph.by_name
    offered: dict[str, float] = {}
    done: dict[str, float] = {}
    work = total = 0.0
    for segment in layout.segments:
        own = [name for name in segment.operators if by_name[name].kind is Kind.SOURCE]
        entries = [*own, *dict.fromkeys(edge.target for edge in segment.inputs)]
        name = segment.name
        offered[name], done[name] = (
            total_of(frame, each, entries) for each in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE)
        )
        if own:
            total += total_of(frame, Metric.ARRIVAL_RATE, own)
        elif before := {layout.stage_of[edge.source].segment for edge in segment.inputs} & offered.keys() - {name}:
            passed = math.fsum(done[each] for each in before)
            offered[name] *= math.fsum(offered[each] for each in before) / passed if passed > 0 else math.nan
        working = [each for each in segment.operators if not by_name[each].waits]
        cores = speed * sum_of(frame, Metric.BUSY_CORES, working)
        if cores > 0:
            work += offered[name] * cores / done[name] if done[name] > 0 else math.nan
    return busy * total / work if work > 0 and total > 0 else processed
