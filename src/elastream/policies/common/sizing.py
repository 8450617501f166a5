"""Figures for sizing hosts, derived from an observation and a `LoadHistory`."""

import math
from itertools import pairwise

import numpy as np

from elastream.core.frames import Frame, known_sum
from elastream.core.lazy import once
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.dataflow.operators import Kind, Operator
from elastream.errors import DataflowError
from elastream.policies.common.load_history import FIRST_BATCHES, LinearFit, LoadHistory
from elastream.policies.common.measures import TICK, capacity
from elastream.policies.common.provision import declared_cores
from elastream.policies.common.query_work import waiting_work
from elastream.policies.forecasting.trend import Forecast, forecast

# Samples used for the fit of busy cores over rate, the fewest needed, and the least ratio of the highest to the lowest
# rate. With less, noise dominates the slope.
LINE_SAMPLES, LEAST_SAMPLES, SPREAD = 30, 6, 1.5
# Multiple of the highest recent processed rate up to which work is extrapolated in proportion to records.
FARTHEST = 4.0
# Consecutive rounds in which the backlog must grow before hosts count as insufficient. Fewer are a slow batch.
ROUNDS = 3
# Part of the records arriving in a round by which the backlog must grow. Less is noise.
GROWTH = 0.02
# Most by which capacity grows at once because it did not suffice (HPA: at most doubled).
MOST_GROWTH = 2.0
# Seconds after which a query counts as started although it reports no ended micro-batch. The second value applies while its
# first batch still runs, which starts everything.
FIRST_BATCHES_S, LONG_FIRST_BATCH_S = 30.0, 120.0
# Part of the target latency that records may wait in queues; the rest is for processing and the next round.
WITHIN = 0.5


class SizingInputs:
    """Figures of the load in cores of speed 1 and records/s; NaN if unknown."""

    def __init__(self, observation: Observation, history: LoadHistory, window: float, pace: float) -> None:
        self.observation = observation
        self.history = history
        self.pace = pace
        self.window = window = max(window, ROUNDS * pace)
        self._recent = int(history.times.searchsorted(observation.time - window, side="right"))

    @once
    def arriving(self) -> float:
        """Newest known arrival rate of the sources within the window (records/s)."""
        rates = self.history.arriving[self._recent :].tolist()
        return next((rate for rate in reversed(rates) if rate == rate), math.nan)

    @once
    def processed(self) -> float:
        """Highest rate of processed source records in the window (records/s): hosts can sustain it."""
        rates = self.history.processed[self._recent :].tolist()
        return max((rate for rate in rates if rate == rate), default=math.nan)

    def expected(self, horizon: float) -> Forecast:
        """Forecast the arrival rate in `horizon` seconds, as a mean over the target latency.

        Only recent samples count. The level is that of `age` seconds ago.
        """
        over = self.observation.context.target_latency or 0.0
        times, arriving = self.history.times, self.history.arriving
        near = int(times.searchsorted(self.observation.time - max(3 * horizon, 2 * over)))
        return forecast(times[near:], arriving[near:], horizon + self.age, over)

    @once
    def age(self) -> float:
        """Age of the newest arrival rate (seconds)."""
        return self.observation.operators.age(Metric.ARRIVAL_RATE)

    @once
    def work(self) -> float:
        """Core-seconds of all operators per source record, over the last warm window."""
        samples, first = self.history.samples, self._recent
        if not self.cold:
            last = len(samples[0]) - 1
            while not self._shows_work(last):
                last -= 1
            first = int(samples[0].searchsorted(float(samples[0, last]) - self.window, side="right"))
        records = work = 0.0
        for processed, busy, warm in zip(*samples[3:, first:].tolist(), strict=True):
            if processed + busy == processed + busy and (warm or self.cold):  # NaN is unequal to itself
                records, work = records + processed, work + busy
        work = work / records if records > 0 else math.nan
        return work if work < math.inf else math.nan

    def _shows_work(self, sample: int) -> bool:
        _, _, _, processed, busy, warm = self.history.samples[:, sample].tolist()
        return bool(warm) and processed > 0 and busy == busy

    @once
    def cold(self) -> bool:
        """True until a sample shows the lasting work per record."""
        *_, processed, _, busy, warm = self.history.samples[:, -1].tolist()
        if warm and processed > 0 and busy >= 0:
            return False  # as in most rounds
        return not bool((self.history.warm & (self.history.processed > 0) & (self.history.busy >= 0)).any())

    @once
    def starting(self) -> bool:
        ended, now = self.history.ended, self.observation.time
        counts = [ended.get(each.name, 0) for each in self.observation.context.layout.segments]
        if all(counts):
            return min(counts, default=FIRST_BATCHES) < FIRST_BATCHES
        return now - self.history.since < (LONG_FIRST_BATCH_S if self.observation.stalled else FIRST_BATCHES_S)

    @once
    def stays_late(self) -> bool:
        """True if the last `ROUNDS` micro-batches of a query were late, none of them among its first."""
        history = self.history
        return any(
            late >= ROUNDS and history.ended.get(query, 0) >= FIRST_BATCHES + ROUNDS for query, late in history.late.items()
        )

    @once
    def declared(self) -> float:
        """Declared core-seconds per source record, in the mix that arrives now; NaN if an operator declares none.

        NaN also while no working operator is known, as in a query that Autopilot watches from its start.
        """
        observation = self.observation
        sources = [source.name for source in observation.context.graph.sources]
        if not sources or not self._working:
            return math.nan
        rates = {name: observation.operators.value(name, Metric.ARRIVAL_RATE) for name in sources}
        total = math.fsum(rates.values())
        if not total > 0:
            rates, total = dict.fromkeys(sources, 1.0), float(len(sources))
        try:
            cores = declared_cores(observation.context.graph, rates, composition=observation.composition)
        except DataflowError:
            return math.nan
        return math.fsum(cores.values()) / total

    @once
    def declares(self) -> bool:
        """True if all working operators declare what a record costs."""
        alternate = self.observation.composition.alternate
        return bool(self._working) and all(alternate(each).cost is not None for each in self._working)

    @once
    def _working(self) -> tuple[Operator, ...]:
        graph = self.observation.context.graph
        return tuple(each for each in graph.operators if each.kind in (Kind.TRANSFORM, Kind.KEYED))

    @once
    def used(self) -> float:
        """Busy cores of the usable hosts, also with work of no operator; NaN if unknown."""
        rows, has = self.observation.hosts.rows, self.observation.capacities
        used = self.observation.hosts.column(Metric.CPU).tolist()
        return known_sum([used[rows[host]] * has[host] for host in self.observation.usable if host in rows])

    @once
    def backlog(self) -> float:
        return self.observation.backlog

    @once
    def waiting(self) -> float:
        """Known queued records, weighted by their remaining work; NaN if none is known."""
        record = self.history.record
        return self.backlog if record is None else waiting_work(self.observation, record)

    def late_backlog(self, rate: float, ahead: float = 0.0) -> float:
        """Return the queued records beyond what the target latency allows at `rate` (Little's law); 0 if unknown.

        Args:
            ahead: Seconds from now; until then the usable hosts process as they do now.
        """
        target = self.observation.context.target_latency
        if target is None or math.isnan(self.backlog) or self.observation.beyond_hosts:
            return 0.0
        waiting, work = self.waiting, self.work
        if ahead > 0 and work > 0 and self.observation.usable:
            grows = rate - capacity(self.observation, self.observation.usable) / work
            waiting = max(0.0, waiting + grows * ahead)
        return max(0.0, waiting - rate * target * WITHIN)

    @once
    def late(self) -> bool:
        """True if the latency is above target, or will be once the backlog is processed, and more hosts may help."""
        target, latency = self.observation.context.target_latency, self.observation.latency().value
        # The latency is that of the last records: outdated if nothing arrives and nothing is queued.
        stale = self.arriving == 0 and not self.backlog > 0
        if target is None or stale or self.observation.beyond_hosts:
            return False
        rate = max([0.0, *(each for each in (self.arriving, self.processed) if each > 0)])
        return (latency is not None and latency > target) or self.backlog > rate * target

    @once
    def behind(self) -> float:
        """Ratio of arriving to processed records of the query furthest behind, from 1 to `MOST_GROWTH`.

        A query is behind if its backlog grew in each of the last `ROUNDS` rounds. With more than two micro-batches
        waiting, the growth of the queue gives the processed rate. 1 if more hosts would not help.
        """
        frames, ratio = self._rounds, 1.0
        if self.observation.beyond_hosts:
            return ratio
        for name in frames[0].ids if len(frames) > ROUNDS else ():
            if math.isnan(frames[0].value(name, Metric.BACKLOG)):
                continue
            waiting = [frame.value(name, Metric.BACKLOG) for frame in frames]
            arrive, done = (frames[0].value(name, metric) for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
            if not all(now - before > GROWTH * arrive * self.pace for now, before in pairwise(waiting)):
                continue
            if waiting[0] > 2 * self._batch(name) * arrive:
                arrived = math.fsum(frame.value(name, Metric.ARRIVAL_RATE) for frame in frames[:ROUNDS])
                done = float(np.fmin(done, (arrived - (waiting[0] - waiting[-1]) / self.pace) / ROUNDS))
            if arrive > (1 + GROWTH) * done:
                ratio = max(ratio, arrive / done if done > 0 else MOST_GROWTH)
        return min(ratio, MOST_GROWTH)

    def _batch(self, operator: str) -> float:
        segment = self.observation.context.layout.stage_of[operator].segment
        usual = self.observation.latency(Metric.BATCH_DURATION).value or 0.0
        return max((each.seconds for each in self.observation.batches if each.segment == segment), default=usual)

    @property
    def since_change(self) -> float:
        """Seconds since a host came or was draining, including hosts that have left."""
        return min(self.observation.since_change, self.observation.time - self.history.last_drain)

    @property
    def settled(self) -> bool:
        return self.since_change >= self.window

    @property
    def steady_batches(self) -> bool:
        """True if each query ends several micro-batches in a window."""
        half, now = self.window / 2, self.observation.time
        last = [self.history.last_batches.get(each.name) for each in self.observation.context.layout.segments]
        return all(each is not None and now - each[0] <= half and each[1] <= half for each in last)

    def queued(self, seconds: float) -> bool:
        """Return True if more records than arrive in `seconds` waited in each of the last `ROUNDS` rounds."""
        least = max(0.0, self.arriving) * seconds
        return not self.observation.beyond_hosts and all(
            known_sum(frame.column(Metric.BACKLOG)) > least for frame in self._rounds
        )

    @once
    def _rounds(self) -> list[Frame]:
        """The operators' metrics of the last rounds, newest first, as far as known."""
        frames, until = [self.observation.operators], self.observation.time - self.pace
        for sample in reversed(self.observation.history):
            if len(frames) > ROUNDS:
                break
            if sample.time <= until + TICK:
                frames.append(sample.operators)
                until -= self.pace
        return frames

    def cores(self, rate: float) -> float:
        """Return the cores needed for `rate` records/s.

        Uses the linear fit of recent samples. Without one, uses the measured work per record near the observed rates, and
        the declared work beyond them.
        """
        if rate == 0:
            return 0.0
        if (fit := self._fit) is not None:
            return fit.cores(rate, rate * self.work)
        if math.isnan(self.work) or (self.cold and self.declares):
            return rate * self.declared
        if not self.declares:
            return min(rate, FARTHEST * self.processed) * self.work
        return rate * self.work

    @property
    def marginal(self) -> float:
        """Return the cores that one record/s more keeps busy; includes the fixed work of batches without a fit."""
        return self.work if self._fit is None else self._fit.slope

    @once
    def _pairs(self) -> list[tuple[float, float]]:
        recent = zip(*self.history.samples[3:, -LINE_SAMPLES:].tolist(), strict=True)
        return [(rate, busy) for rate, busy, warm in recent if rate > 0 and busy >= 0 and warm > 0]

    @once
    def _fit(self) -> LinearFit | None:
        """Fit of recent samples; None if they do not separate fixed from proportional work."""
        if len(self._pairs) < LEAST_SAMPLES:
            return None
        rates, busy = zip(*self._pairs, strict=True)
        if not max(rates) > SPREAD * min(rates):
            return None
        fit = LinearFit.through(rates, busy)
        return fit if fit.slope > 0 and fit.intercept > 0 else None
