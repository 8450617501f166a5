"""Execution of a query's micro-batches over many monitoring periods in one compiled call."""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.core.latency import HALF_AND_99, weighted_quantiles
from elastream.policies.common.governor import REMEMBERED, next_allowance
from elastream.simulator.stations import Items
from elastream.units import ROUNDING

# Integer state of a query: first waiting row, end of the rows, first row of the running batch, open period, batch running,
# batches in the governor's memory (-1: before the first, -2: no governor), next batch number, durations in the open period,
# hosts charged, flows set aside.
HEAD, TAIL, FIRST, PERIOD, RUNNING, MEMORY_SIZE, ORDINAL, SPENT, CHARGED_HOSTS, ASIDE = range(10)
# Float state of a query: of the running batch its start, end, seconds without its wait for others' tasks; end of the last
# batch; of the running batch the time charged so far and records; the governor's limit; records and start of the batch not
# yet reported to it; records waiting from closed periods; time, origin and records of the row that the batch took in part.
STARTS, ENDS, LASTS, FREE, CHARGED, BATCH_SIZE, ALLOWANCE, PLANNED, SINCE, WAITING, PART_TIME, PART_BORN, PART = range(13)
# Columns of a period: records arrived and done, sum of delays, core-seconds; records waiting and running at its end; median
# and 99th percentile of delays; records within the target latency, then within each service level.
ARRIVED, DONE, DELAY, BUSY, LEFT, WORKING, MIDDLE, LATE, IN_TIME, WITHIN = range(10)

weighted = njit(cache=True)(weighted_quantiles)
_next_allowance = njit(cache=True)(next_allowance)


class QueryState(NamedTuple):
    """Arrays that compiled batches read and change; columns as above.

    Attributes:
        remembered: Records and seconds of batches in the governor's memory.
        charged, charges, busy: Hosts of the running batch, their core-seconds, and the sum.
        used: Cores that its tasks keep busy, by host.
    """

    marks: NDArray[np.int64]
    state: Floats
    remembered: Floats
    spent: Floats
    charged: NDArray[np.int64]
    charges: Floats
    busy: Floats
    used: Floats


class Burdens(NamedTuple):
    """Work of a query's next batches on each of its hosts.

    Attributes:
        share: Fraction of a stage's records on a host, standby replicas included; shape (stages, hosts).
        loading: Tasks that must load state first; shape (stages, hosts).
        cores: Cores for tasks; shape (hosts,).
        floor: Cores in use without any record; shape (hosts,).
        coming: Number of hosts that are requested and do not run yet.
        careful: True if each batch may find its tasks elsewhere, so that a call simulates one batch.
    """

    hosts: NDArray[np.int64]
    share: Floats
    loading: Floats
    pace: Floats
    speed: Floats
    cores: Floats
    floor: Floats
    coming: int
    careful: bool


class Rules(NamedTuple):
    """Constants of a query's batches.

    Attributes:
        state_load: Core-seconds to load a task's state.
        start_delay: Seconds per batch and starting host.
        batch_seconds: Target of the governor.
        number: Row of the query in the figures of a turn.
        ratios: Recorded over expected durations; the first batch takes row `first_ratio`.
        limits: Service levels of the first stage (seconds).
    """

    overhead: float
    batch_work: float
    state_load: float
    start_delay: float
    interval: float
    batch_seconds: float
    ratios: Floats
    first_ratio: int
    limits: Floats
    number: int


class Turn(NamedTuple):
    """One advance of all queries.

    Attributes:
        ends: Ends of the monitoring periods; inf after the last.
        worked: Core-seconds by period and host; added to.
        speed: Speed by host.
        interval: Number of the interval with these speeds.
        target: Target latency (seconds); inf without one.
        until: End of each query's batch; shape (queries,).
        used: Cores that its tasks keep busy; shape (queries, hosts).
    """

    ends: Floats
    worked: Floats
    speed: Floats
    interval: int
    begin: float
    end: float
    target: float
    until: Floats
    used: Floats


class Output(NamedTuple):
    """Rows that compiled batches write.

    Attributes:
        batches: Start, seconds, records, oldest, newest.
        done: Commit, born, records; skipped if empty.
    """

    table: Floats
    batches: Floats
    done: Floats


@njit(cache=True)
def _close(table: Floats, marks: NDArray[np.int64], state: Floats, spent: Floats, times: Floats, end: float) -> None:
    row = table[marks[PERIOD]]
    state[WAITING] += row[ARRIVED]
    if marks[ASIDE] == 0 and (marks[HEAD] == marks[TAIL] or times[marks[HEAD]] >= end):
        state[WAITING] = 0.0  # rounding must not add up over a long run
    row[LEFT] = max(0.0, state[WAITING])
    row[WORKING] = state[BATCH_SIZE] if marks[RUNNING] else 0.0
    row[MIDDLE] = row[LATE] = np.nan
    if marks[SPENT] > 0:
        quantiles = weighted(spent[0, : marks[SPENT]], spent[1, : marks[SPENT]], HALF_AND_99)
        row[MIDDLE], row[LATE] = quantiles[0], quantiles[1]
        marks[SPENT] = 0
    marks[PERIOD] += 1


@njit(cache=True)
def _learn(marks: NDArray[np.int64], state: Floats, remembered: Floats, batch_seconds: float) -> None:
    if marks[MEMORY_SIZE] == -2 or state[PLANNED] <= 0.0:
        return
    records, seconds = max(1.0, np.round(state[PLANNED])), state[FREE] - state[SINCE]
    state[PLANNED] = 0.0
    if marks[MEMORY_SIZE] == -1:
        marks[MEMORY_SIZE] = 0  # the very first batch starts workers and is not representative
        return
    if marks[MEMORY_SIZE] == REMEMBERED:
        remembered[:, :-1] = remembered[:, 1:].copy()
        marks[MEMORY_SIZE] -= 1
    count = marks[MEMORY_SIZE]
    remembered[0, count], remembered[1, count] = records, seconds
    marks[MEMORY_SIZE] = count + 1
    state[ALLOWANCE] = _next_allowance(
        remembered[0, : count + 1], remembered[1, : count + 1], int(state[ALLOWANCE]), batch_seconds
    )


@njit(cache=True)
def next_start(first: float, state: Floats, interval: float, begin: float) -> float:
    """Return the start of the next batch, not before `begin`; `first`: time of the oldest waiting record."""
    free = float(state[FREE])
    if interval <= 0.0 or first == math.inf:
        return max(free, max(begin, first))
    # Spark's rule: a missed trigger fires at once; one without records waits for the next.
    following = (math.floor(state[STARTS] / interval + ROUNDING) + 1) * interval if state[STARTS] >= 0.0 else 0.0
    start = max(free, following)
    return max(first, max(begin, start if first <= start else math.ceil(first / interval) * interval))


@njit(cache=True)
def _seconds_from(at: float, efforts: Floats, burdens: Burdens, turn: Turn, number: int) -> float:
    """Return how long tasks take from the time `at` on the cores that others leave; inf without any."""
    seconds, hosts = 0.0, burdens.hosts
    free = np.full(hosts.size, math.inf)
    for other in range(turn.until.size):
        if other != number and turn.until[other] > at:
            for k in range(hosts.size):
                free[k] = min(free[k], burdens.cores[k]) - turn.used[other, hosts[k]]
    for stage in range(efforts.shape[0]):
        longest = 0.0
        for k in range(hosts.size):
            if efforts[stage, k] > 0.0:
                pace = min(burdens.pace[stage, k], free[k] * burdens.speed[k])
                longest = max(longest, efforts[stage, k] / pace if pace >= ROUNDING else math.inf)
        seconds += longest
    return seconds


@njit(cache=True)
def _begin_and_seconds(ready: float, efforts: Floats, burdens: Burdens, turn: Turn, number: int) -> tuple[float, float]:
    # Tasks are not interrupted. So they begin at once on the cores that are left, or once another query's batch has ended,
    # whichever ends sooner.
    begin, seconds = ready, _seconds_from(ready, efforts, burdens, turn, number)
    for other in range(turn.until.size):
        at = turn.until[other]
        if other != number and ready < at < begin + seconds:
            lasts = _seconds_from(at, efforts, burdens, turn, number)
            if at + lasts < begin + seconds:
                begin, seconds = at, lasts
    return begin, seconds


@njit(cache=True)
def run_batches(  # noqa: C901
    queue: Items, query: QueryState, burdens: Burdens, work: Floats, rules: Rules, turn: Turn, output: Output
) -> tuple[bool, int, int, int]:
    """Execute batches in [turn.begin, turn.end). `work`: core-seconds per record, by stage.

    Returns:
        (True to call again, batches begun, committed, rows of `output.done`).
    """
    times, born, counts = queue
    marks, state, remembered, spent, charged, charges, busy, used = query
    rows, share, loading, _, speed, _, floor, coming, careful = burdens
    overhead, batch_work, state_load, start_delay, interval, batch_seconds, ratios, first_ratio, limits, number = rules
    period_ends, worked, _, _, begin, end, target, _, _ = turn
    table, batches, done = output
    stages, hosts = share.shape
    efforts = np.zeros((stages, hosts))
    placed = True
    for stage in range(stages):
        placed = placed and share[stage].sum() > 0.0
    begun = committed = sent = 0
    while True:
        if marks[RUNNING]:
            stop = min(end, state[ENDS])
            while True:
                until = min(stop, period_ends[marks[PERIOD]])
                if until > state[CHARGED]:
                    part = (until - state[CHARGED]) / state[LASTS]
                    for k in range(marks[CHARGED_HOSTS]):
                        worked[marks[PERIOD], charged[k]] += charges[k] * part
                    table[marks[PERIOD], BUSY] += busy[0] * part
                    state[CHARGED] = until
                if period_ends[marks[PERIOD]] > stop:
                    break
                _close(table, marks, state, spent, times, period_ends[marks[PERIOD]])
            if state[ENDS] >= end:
                return False, begun, committed, sent
            at = state[ENDS]
            figures = table[marks[PERIOD]]
            oldest, newest = -math.inf, math.inf
            for row in range(marks[FIRST], marks[HEAD] + 1):
                if row < marks[HEAD]:
                    queued, entered, count = times[row], born[row], counts[row]
                else:
                    queued, entered, count = state[PART_TIME], state[PART_BORN], state[PART]
                    if count <= 0.0:
                        break
                figures[DELAY] += count * (at - queued)
                for level in range(limits.size):
                    if at - queued <= limits[level]:
                        figures[WITHIN + level] += count
                if at - entered <= target:
                    figures[IN_TIME] += count
                oldest, newest = max(oldest, at - entered), min(newest, at - entered)
                spent[0, marks[SPENT]], spent[1, marks[SPENT]] = at - queued, count
                marks[SPENT] += 1
                if done.shape[0] > 0:
                    done[sent] = at, entered, count
                    sent += 1
            figures[DONE] += state[BATCH_SIZE]
            batches[committed] = state[STARTS], at - state[STARTS], state[BATCH_SIZE], oldest, newest
            committed += 1
            state[FREE], state[ENDS], state[BATCH_SIZE], state[PART] = at, math.inf, 0.0, 0.0
            marks[RUNNING], marks[FIRST] = 0, marks[HEAD]
            if careful or committed == batches.shape[0]:
                return True, begun, committed, sent
        first = times[marks[HEAD]] if marks[HEAD] < marks[TAIL] else math.inf
        start = next_start(first, state, interval, begin)
        if start >= end or not placed:
            while period_ends[marks[PERIOD]] <= end:
                _close(table, marks, state, spent, times, period_ends[marks[PERIOD]])
            return False, begun, committed, sent
        while period_ends[marks[PERIOD]] <= start:
            _close(table, marks, state, spent, times, period_ends[marks[PERIOD]])
        _learn(marks, state, remembered, batch_seconds)
        allowed = state[ALLOWANCE] if marks[MEMORY_SIZE] != -2 else math.inf
        size, row = 0.0, marks[HEAD]
        while row < marks[TAIL] and times[row] <= start and size + counts[row] <= allowed + ROUNDING:
            size += counts[row]
            row += 1
        state[PART] = 0.0
        if row < marks[TAIL] and times[row] <= start and allowed - size > ROUNDING:
            state[PART_TIME], state[PART_BORN], state[PART] = times[row], born[row], allowed - size
            counts[row] -= allowed - size
            size = allowed
        marks[FIRST], marks[HEAD] = marks[HEAD], row
        ratio = 1.0
        if ratios.size:
            ratio = ratios[(first_ratio + marks[ORDINAL]) % ratios.size]
            marks[ORDINAL] += 1
        charges[:hosts] = 0.0
        busy[0] = 0.0
        for stage in range(stages):
            for k in range(hosts):
                efforts[stage, k] = 0.0
                if share[stage, k] > 0.0:
                    effort = (size * work[stage] + batch_work / stages) * share[stage, k] + state_load * loading[stage, k]
                    efforts[stage, k] = effort
                    charges[k] += effort / speed[k]
                    busy[0] += effort / speed[k]
        alone = overhead * stages + start_delay * coming
        ready = start + alone * ratio
        tasks, seconds = _begin_and_seconds(ready, efforts, burdens, turn, number)
        lasts = (alone + seconds) * ratio
        state[STARTS], state[ENDS], state[LASTS] = start, start + (tasks - ready) + lasts, lasts
        state[CHARGED], state[BATCH_SIZE] = start + (tasks - ready), size
        turn.until[number], turn.used[number] = state[ENDS], 0.0
        for k in range(hosts):
            charged[k] = rows[k]
            used[k] = charges[k] / seconds if seconds > 0.0 else 0.0
            turn.used[number, rows[k]] = used[k]
            charges[k] = max(charges[k], floor[k] * max(lasts, interval))
        marks[CHARGED_HOSTS] = hosts
        state[PLANNED], state[SINCE] = size, start
        state[WAITING] -= size
        marks[RUNNING] = 1
        begun += 1


@njit(cache=True)
def rates_at(moments: Floats, log: Floats, window: float) -> tuple[Floats, NDArray[np.int64]]:
    """Return (records/s, batches) over `window` seconds before each moment.

    Without a commit then, of the newest batch. Rates count from the end of the batch before; NaN before the first commit.
    """
    rates, batches = np.full(moments.size, np.nan), np.zeros(moments.size, dtype=np.int64)
    low = high = 0
    for k in range(moments.size):
        while high < log.shape[0] and log[high, 0] + log[high, 1] < moments[k]:
            high += 1
        while low < high and log[low, 0] + log[low, 1] < moments[k] - window:
            low += 1
        if high == 0:
            continue
        first = min(low, high - 1)
        since = log[first, 0]
        if first > 0:
            since = min(since, max(log[first - 1, 0] + log[first - 1, 1], since - window))
        rates[k] = log[first:high, 2].sum() / max(1e-3, log[high - 1, 0] + log[high - 1, 1] - since)
        batches[k] = high - first
    return rates, batches
