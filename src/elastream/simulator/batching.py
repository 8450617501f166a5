"""Executes the micro-batches of one query over many monitoring periods in one compiled call.

A run has several batches a second and an observation every few seconds, so what a batch and a period cost decides what a
simulated day costs. The queue is rows of three arrays; a batch is a range of them. Figures are added up by monitoring
period; what the batches themselves were is returned.
"""

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from elastream.core.frames import Floats
from elastream.core.latency import HALF_AND_99, weighted_quantiles
from elastream.policies.common.governor import REMEMBERED, next_allowance
from elastream.units import ROUNDING

HEAD, TAIL, FIRST, SEEN, PERIOD, RUNNING, KNOWN, ORDINAL, SPENT, CHARGED_HOSTS = range(10)
"""Marks of a query: first waiting row, end of the rows, first row of the batch in work, end of the rows counted as
arrived, open period, whether a batch is in work, batches that the governor remembers (-1: before the first, -2: no
governor), number of the next batch, durations kept of the open period, hosts that the batch in work is charged to."""
STARTS, ENDS, FREE, CHARGED, TAKEN, ALLOWANCE, PLANNED, SINCE, WAITING, PART_TIME, PART_BORN, PART = range(12)
"""State of a query: of the batch in work its start, its end, until when hosts are charged for it, and its records; when
the last batch ended; the governor's limit and the batch it has yet to learn of (records, 0 for none; start); records
that arrived in closed periods and wait; the row of which the batch took only a part (time, origin, records of it)."""
ARRIVED, DONE, DELAY, BUSY, LEFT, WORKING, MIDDLE, LATE, IN_TIME, WITHIN = range(10)
"""Columns of a period: records arrived and done, sum of their delays, core-seconds of the hosts; at its end records waiting
and in work; median and 99th percentile of the delays, records within the target latency, then within each service level."""

weighted = njit(cache=True)(weighted_quantiles)
_next_allowance = njit(cache=True)(next_allowance)


@njit(cache=True)
def _close(table: Floats, marks: NDArray[np.int64], state: Floats, spent: Floats) -> None:
    """Close the open period: the figures at its end, and the quantiles of its delays."""
    row = table[marks[PERIOD]]
    state[WAITING] += row[ARRIVED]
    row[LEFT] = max(0.0, state[WAITING])
    row[WORKING] = state[TAKEN] if marks[RUNNING] else 0.0
    row[MIDDLE] = row[LATE] = np.nan
    if marks[SPENT] > 0:
        found = weighted(spent[0, : marks[SPENT]], spent[1, : marks[SPENT]], HALF_AND_99)
        row[MIDDLE], row[LATE] = found[0], found[1]
        marks[SPENT] = 0
    marks[PERIOD] += 1


@njit(cache=True)
def _learn(marks: NDArray[np.int64], state: Floats, remembered: Floats, batch_seconds: float) -> None:
    """Report the last batch to the governor, with the time from its planning to its commit, as Elastream's sources do."""
    if marks[KNOWN] == -2 or state[PLANNED] <= 0.0:
        return
    records, seconds = max(1.0, np.round(state[PLANNED])), state[FREE] - state[SINCE]
    state[PLANNED] = 0.0
    if marks[KNOWN] == -1:
        marks[KNOWN] = 0  # the very first batch starts workers and is not representative
        return
    if marks[KNOWN] == REMEMBERED:
        remembered[:, :-1] = remembered[:, 1:].copy()
        marks[KNOWN] -= 1
    known = marks[KNOWN]
    remembered[0, known], remembered[1, known] = records, seconds
    marks[KNOWN] = known + 1
    state[ALLOWANCE] = _next_allowance(
        remembered[0, : known + 1], remembered[1, : known + 1], int(state[ALLOWANCE]), batch_seconds
    )


@njit(cache=True)
def run_batches(
    times: Floats,
    born: Floats,
    counts: Floats,
    marks: NDArray[np.int64],
    state: Floats,
    remembered: Floats,
    spent: Floats,
    rows: NDArray[np.int64],
    share: Floats,
    loading: Floats,
    pace: Floats,
    speed: Floats,
    floor: Floats,
    work: Floats,
    constants: tuple[float, float, float, float, float, float],
    ratios: Floats,
    first_ratio: int,
    charged: NDArray[np.int64],
    charges: Floats,
    busy: Floats,
    begin: float,
    end: float,
    period_ends: Floats,
    limits: Floats,
    target: float,
    careful: bool,
    table: Floats,
    worked: Floats,
    batches: Floats,
    done: Floats,
) -> tuple[bool, int, int, int]:
    """Execute batches in [begin, end); returns (whether to call again, batches begun, batches committed, rows of `done`).

    times, born, counts: rows of the queue, when each arrived, when its records entered the dataflow, and how many they are.
    rows: hosts, by row of the pool; share, loading, pace: by stage and host, the part of the stage's tasks, tasks that load
    state, and core-seconds of speed 1 a second; share is 0 everywhere where no host runs the stage. speed: of the hosts.
    floor: cores that a host uses in any case, by host. work: core-seconds a record, by stage. constants: seconds a batch,
    core-seconds a batch, core-seconds to load a task's state, more seconds a batch, least seconds between starts, the
    governor's aim. charged, charges, busy: of the batch in work, hosts and core-seconds of each; their sum.
    period_ends: of the open period and those after it, the last one inf. careful: return after each batch, because the next
    one runs on other hosts. table, worked: by period, figures and core-seconds of hosts, added to. batches: rows (start,
    seconds, records, oldest, newest), filled. done: rows (commit, born, records), filled unless it has no rows.
    """
    overhead, batch_work, state_load, delayed, interval, batch_seconds = constants
    stages, hosts = share.shape
    period = 0
    while marks[SEEN] < marks[TAIL]:
        row = marks[SEEN]
        while times[row] >= period_ends[period]:
            period += 1
        table[period, ARRIVED] += counts[row]
        marks[SEEN] += 1
    ready = True
    for stage in range(stages):
        ready = ready and share[stage].sum() > 0.0
    begun = committed = sent = 0
    while True:
        if marks[RUNNING]:
            stop, whole = min(end, state[ENDS]), state[ENDS] - state[STARTS]
            while True:
                until = min(stop, period_ends[marks[PERIOD]])
                if until > state[CHARGED]:
                    part = (until - state[CHARGED]) / whole
                    for k in range(marks[CHARGED_HOSTS]):
                        worked[marks[PERIOD], charged[k]] += charges[k] * part
                    table[marks[PERIOD], BUSY] += busy[0] * part
                    state[CHARGED] = until
                if period_ends[marks[PERIOD]] > stop:
                    break
                _close(table, marks, state, spent)
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
            figures[DONE] += state[TAKEN]
            batches[committed] = state[STARTS], at - state[STARTS], state[TAKEN], oldest, newest
            committed += 1
            state[FREE], state[ENDS], state[TAKEN], state[PART] = at, math.inf, 0.0, 0.0
            marks[RUNNING], marks[FIRST] = 0, marks[HEAD]
            if careful or committed == batches.shape[0]:
                return True, begun, committed, sent
        first = times[marks[HEAD]] if marks[HEAD] < marks[TAIL] else math.inf
        if interval <= 0.0 or first == math.inf:
            start = max(state[FREE], max(begin, first))
        else:
            # Spark's rule: a missed trigger fires at once; one without records waits for the next.
            following = (math.floor(state[STARTS] / interval + ROUNDING) + 1) * interval if state[STARTS] >= 0.0 else 0.0
            start = max(state[FREE], following)
            start = max(first, max(begin, start if first <= start else math.ceil(first / interval) * interval))
        if start >= end or not ready:
            while period_ends[marks[PERIOD]] <= end:
                _close(table, marks, state, spent)
            return False, begun, committed, sent
        while period_ends[marks[PERIOD]] <= start:
            _close(table, marks, state, spent)
        _learn(marks, state, remembered, batch_seconds)
        allowed = state[ALLOWANCE] if marks[KNOWN] != -2 else math.inf
        taken, row = 0.0, marks[HEAD]
        while row < marks[TAIL] and times[row] <= start and taken + counts[row] <= allowed + ROUNDING:
            taken += counts[row]
            row += 1
        state[PART] = 0.0
        if row < marks[TAIL] and times[row] <= start and allowed - taken > ROUNDING:
            state[PART_TIME], state[PART_BORN], state[PART] = times[row], born[row], allowed - taken
            counts[row] -= allowed - taken
            taken = allowed
        marks[FIRST], marks[HEAD] = marks[HEAD], row
        lasts = overhead * stages + delayed
        charges[:hosts] = 0.0
        busy[0] = 0.0
        for stage in range(stages):
            longest = 0.0
            for k in range(hosts):
                if share[stage, k] > 0.0:
                    effort = (taken * work[stage] + batch_work / stages) * share[stage, k] + state_load * loading[stage, k]
                    longest = max(longest, effort / pace[stage, k])
                    charges[k] += effort / speed[k]
                    busy[0] += effort / speed[k]
            lasts += longest
        for k in range(hosts):
            charged[k] = rows[k]
            charges[k] = max(charges[k], floor[k] * max(lasts, interval))
        marks[CHARGED_HOSTS] = hosts
        if ratios.size:
            lasts *= ratios[(first_ratio + marks[ORDINAL]) % ratios.size]
            marks[ORDINAL] += 1
        state[STARTS], state[ENDS], state[CHARGED], state[TAKEN] = start, start + lasts, start, taken
        state[PLANNED], state[SINCE] = taken, start
        state[WAITING] -= taken
        marks[RUNNING] = 1
        begun += 1


@njit(cache=True)
def rates_at(moments: Floats, log: Floats, window: float) -> tuple[Floats, NDArray[np.int64]]:
    """(records/s, batches) of `window` seconds before each of `moments`, or of the newest batch if none committed then.

    log: rows (start, seconds, records, ...) of batches in order. Rates are measured from the end of the batch before the
    window's first, at most `window` before that one began; NaN before the first commit.
    """
    rates, known = np.full(moments.size, np.nan), np.zeros(moments.size, dtype=np.int64)
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
        known[k] = high - first
    return rates, known
