"""Figures of the load from what a policy has seen of it, round by round (`algorithms.seen`)."""

import math
from functools import cached_property
from itertools import pairwise

import numpy as np

from elastream.core.frames import Floats, Frame, known_sum
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.dataflow.operators import Kind
from elastream.errors import DataflowError
from elastream.policies.common.load_history import Line, Seen
from elastream.policies.common.measures import TICK, capacity
from elastream.policies.common.provision import declared_cores
from elastream.policies.forecasting.trend import Forecast, forecast

LINE_SAMPLES, LEAST_SAMPLES, SPREAD = 30, 6, 1.5
"""Samples used for the line through rate and busy cores, the fewest needed, and the least ratio of highest to lowest rate:
with less, noise dominates the slope."""
FARTHEST = 4.0
"""Multiple of the highest recently processed rate up to which work is extrapolated in proportion to records."""
ROUNDS = 3
"""Rounds in a row in which what waits must have grown before hosts count as insufficient: fewer are a slow batch."""
GROWTH = 0.02
"""Part of the records arriving in a round by which it must have grown: less is noise."""
MOST_GROWTH = 2.0
"""Most by which capacity grows at once because it did not suffice (HPA: at most doubled)."""
WITHIN = 0.5
"""Part of the target latency that records may wait in queues: the rest is for their processing, and for the next round."""


class LoadFigures:
    """Load figures derived from an observation and what was seen before, in cores of speed 1; NaN if unknown."""

    def __init__(self, observation: Observation, seen: Seen, window: float, pace: float) -> None:
        self.observation = observation
        self.seen = seen
        self.pace = pace
        self.window = window = max(window, ROUNDS * pace)
        self._recent = seen.times > observation.time - window

    @cached_property
    def arriving(self) -> float:
        """Records/s arriving at the sources: the newest known within the window."""
        rates = self.seen.arriving[self._recent]
        known = rates[~np.isnan(rates)]
        return float(known[-1]) if known.size else math.nan

    @cached_property
    def processed(self) -> float:
        """Highest processed rate of the sources within the window, records/s: a rate that the hosts can sustain."""
        rates = self.seen.processed[self._recent]
        known = rates[~np.isnan(rates)]
        return float(known.max()) if known.size else math.nan

    def expected(self, horizon: float) -> Forecast:
        """The arrival rate now, and `horizon` seconds from now, as a mean over the target latency.

        Of the time that matters for the horizon: the trend of a whole day says little about the next minute.
        """
        over = self.observation.context.target_latency or 0.0
        near = slice(int(np.searchsorted(self.seen.times, self.observation.time - max(3 * horizon, 2 * over))), None)
        return forecast(self.seen.times[near], self.seen.arriving[near], horizon, over)

    @cached_property
    def work(self) -> float:
        """Core-seconds that all operators together spend per record from a source: measured in the last window that was
        warm; before there was one, in the last window."""
        times, processed, busy = self.seen.times, self.seen.finished, self.seen.busy
        usable = processed + busy == processed + busy  # NaN is unequal to itself
        if not self.cold:
            usable &= self.seen.warm
            usable &= times > float(times[usable & (processed > 0)][-1]) - self.window
        else:
            usable &= self._recent
        records = float(processed[usable].sum())
        work = float(busy[usable].sum()) / records if records > 0 else math.nan
        return work if work < math.inf else math.nan

    @cached_property
    def cold(self) -> bool:
        """Whether no sample tells yet what a record works: at the start of a run, far more than later."""
        return not bool((self.seen.warm & (self.seen.processed > 0) & (self.seen.busy >= 0)).any())

    @cached_property
    def declared(self) -> float:
        """Core-seconds per record of the sources, in the mix that arrives now, as operators declare; NaN if one does
        not, and where no query runs that has a source."""
        observation = self.observation
        sources = [source.name for source in observation.context.graph.sources]
        if not sources:
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

    @cached_property
    def declares(self) -> bool:
        """Whether all operators that work declare what a record costs."""
        observation = self.observation
        working = (o for o in observation.context.graph.operators if o.kind in (Kind.TRANSFORM, Kind.KEYED))
        return all(observation.composition.alternate(operator).cost is not None for operator in working)

    @cached_property
    def used(self) -> float:
        """Cores that the usable hosts use, including work not attributed to operators; NaN if unknown."""
        rows, has = self.observation.hosts.rows, self.observation.capacities
        used = self.observation.hosts.column(Metric.CPU).tolist()
        return known_sum([used[rows[host]] * has[host] for host in self.observation.usable if host in rows])

    @cached_property
    def backlog(self) -> float:
        """Records queued at all operators, as far as known; NaN if nothing is."""
        return self.observation.backlog

    def late_backlog(self, rate: float, ahead: float = 0.0) -> float:
        """Records queued beyond what the target latency allows at `rate` (Little's law), `ahead` seconds from now if the
        usable hosts go on as they are; 0 if unknown."""
        target = self.observation.context.target_latency
        if target is None or math.isnan(self.backlog):
            return 0.0
        waiting, work = self.backlog, self.work
        if ahead > 0 and work > 0 and self.observation.usable:
            grows = rate - capacity(self.observation, self.observation.usable) / work
            waiting = max(0.0, waiting + grows * ahead)
        return max(0.0, waiting - rate * target * WITHIN)

    @cached_property
    def late(self) -> bool:
        """Whether the target latency is exceeded, or the records that wait will exceed it at the rate of processing."""
        target, latency = self.observation.context.target_latency, self.observation.latency().value
        # The latency is that of the last records: outdated if nothing arrives and nothing is queued.
        stale = self.arriving == 0 and not self.backlog > 0
        if target is None or stale:
            return False
        rate = max([0.0, *(each for each in (self.arriving, self.processed) if each > 0)])
        return (latency is not None and latency > target) or self.backlog > rate * target

    @cached_property
    def behind(self) -> float:
        """Ratio of arriving to processed records, at most `MOST_GROWTH`, of the query furthest behind; 1 if none is.

        One does in whose queue more records waited after each of the last `ROUNDS` rounds: whatever the metered work, the
        hosts do not suffice. By the queue where more wait than come during two of its micro-batches, which no moment of a
        batch explains: the rate processed in one round depends on which batches happen to end in it.
        """
        frames, ratio = self._rounds, 1.0
        for name in frames[0].ids if len(frames) > ROUNDS else ():
            arrive, done = (frames[0].value(name, metric) for metric in (Metric.ARRIVAL_RATE, Metric.PROCESSED_RATE))
            waiting = [frame.value(name, Metric.BACKLOG) for frame in frames]
            if not all(now - before > GROWTH * arrive * self.pace for now, before in pairwise(waiting)):
                continue
            if waiting[0] > 2 * self._batch(name) * arrive:
                came = math.fsum(frame.value(name, Metric.ARRIVAL_RATE) for frame in frames[:ROUNDS])
                done = float(np.fmin(done, (came - (waiting[0] - waiting[-1]) / self.pace) / ROUNDS))
            if arrive > (1 + GROWTH) * done:
                ratio = max(ratio, arrive / done if done > 0 else MOST_GROWTH)
        return min(ratio, MOST_GROWTH)

    def _batch(self, operator: str) -> float:
        """Seconds of the longest micro-batch of an operator's query that ended lately; of any, where none of it did."""
        segment = self.observation.context.layout.stage_of[operator].segment
        usual = self.observation.latency(Metric.BATCH_DURATION).value or 0.0
        return max((each.seconds for each in self.observation.batches if each.segment == segment), default=usual)

    @property
    def since_change(self) -> float:
        """Seconds since a host came or was draining, also one that is gone by now."""
        return min(self.observation.since_change, self.observation.time - self.seen.left)

    @property
    def settled(self) -> bool:
        """Whether all of the window is later than the last change of hosts."""
        return self.since_change >= self.window

    @property
    def steady_batches(self) -> bool:
        """Whether several micro-batches of each query end in every window, so that its means say something."""
        half, now = self.window / 2, self.observation.time
        last = [self.seen.ended.get(each.name) for each in self.observation.context.layout.segments]
        return all(each is not None and now - each[0] <= half and each[1] <= half for each in last)

    def queued(self, seconds: float) -> bool:
        """Whether more records than arrive in `seconds` waited in each of the last `ROUNDS` rounds and still do."""
        least = max(0.0, self.arriving) * seconds
        return all(known_sum(frame.column(Metric.BACKLOG)) > least for frame in self._rounds)

    @cached_property
    def _rounds(self) -> list[Frame]:
        """The operators now, and as they were a round ago, two and so on, as far as known; the newest first."""
        found, until = [self.observation.operators], self.observation.time - self.pace
        for sample in reversed(self.observation.history):
            if len(found) > ROUNDS:
                break
            if sample.time <= until + TICK:
                found.append(sample.operators)
                until -= self.pace
        return found

    def cores(self, rate: float) -> float:
        """Cores needed for `rate` records/s: by the line through recent samples (`Line`), else by the measured work per
        record up to rates like those seen, and the declared work beyond; by the declared work where nothing was measured
        yet."""
        if rate == 0:
            return 0.0
        if (line := self._line) is not None:
            return line.cores(rate, rate * self.work)
        if math.isnan(self.work) or (self.cold and self.declares):
            return rate * self.declared
        if not self.declares:
            return min(rate, FARTHEST * self.processed) * self.work
        return rate * self.work

    @cached_property
    def _pairs(self) -> Floats:
        """(records/s finished, busy cores) of the last LINE_SAMPLES samples, where known and warm; shape (n, 2)."""
        recent = self.seen.samples[3:, -LINE_SAMPLES:]
        known: Floats = recent[:2, (recent[0] > 0) & (recent[1] >= 0) & (recent[2] > 0)].T
        return known

    @cached_property
    def _line(self) -> "Line | None":
        """The line through what the last samples processed and worked; None if the data does not separate its parts."""
        pairs = self._pairs
        if len(pairs) < LEAST_SAMPLES or not pairs[:, 0].max() > SPREAD * pairs[:, 0].min():
            return None
        line = Line.through(*pairs.T)
        return line if line.each > 0 and line.fixed > 0 else None
