"""Findings about an application: each has its evidence, what to change, and how sure it is.

Lateness is diagnosed as Autopilot does; the other rules read what only a whole log shows.
"""

import bisect
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice, pairwise, takewhile

from elastream.advice.application import COLD_BATCHES, NAN, POLL_S, Application, LoggedBatch, LoggedQuery, Stage, times_of
from elastream.advice.service import Latency
from elastream.advice.sizing import longest_trigger, partitions_on
from elastream.core.lateness import (
    BATCHES_READ,
    FILLED,
    LEAST_BATCHES,
    LONG_SHARE,
    LONG_TASK,
    BatchTimes,
    Cause,
    Diagnosis,
    QueryTraits,
    StageTimes,
    bottleneck,
    diagnose,
    more_partitions,
)
from elastream.core.wording import amount, counted, percent
from elastream.units import format_duration

# Shares from which late records and the cause of blocks of batches are reported, and from which a cause is sure.
LATE, OFTEN, SURE = 0.05, 0.25, 0.6
# Late batches that suffice to name a cause if there are no others.
LEAST_LATE = 2
# Shortest batch of which a part is worth removing although no record is late (seconds).
LONG_BATCH_S = 1.0
# A trigger is too long from this multiple of a batch's duration, and from these seconds: shorter ones serve latency.
LONG_TRIGGER, LONG_TRIGGER_S = 10.0, 20.0
# Tasks a slot from which partitions are too many if each has few records and seconds; least share of a batch in them.
PARTITIONS_A_SLOT, FEW_RECORDS, SHORT_TASK_S, PARTITIONS_SHARE = 8, 200, 0.5, 0.3
# Multiple of the usual duration after which a batch without an end is reported.
UNFINISHED = 3.0
# Batches that growth of state needs, its least factor over them, and the share of batches that must add rows.
STATE_BATCHES, STATE_GROWTH, STATE_ADDS = 6, 1.2, 0.8
# Rows that a record adds to the state in the last third, over those in all: keys that come to an end add less and less.
STATE_LAST_THIRD = 0.5
# Batches of a limited source, the share of them that are full, how full, and what waits behind one, in such batches.
LIMIT_BATCHES, LIMITED, FULL, BEHIND = 10, 0.8, 0.9, 0.5
# Trigger intervals since the start before, from which a batch started late.
LATE_START = 1.5
# Means to remove rows of state, by a part of the operator's name: without a watermark, and if the watermark removes
# nothing.
ENDS_OF_STATE = {
    "join": (
        "withWatermark on both sides, and a range of their event times in the join's condition",
        "a range of both event times in the join's condition, so that the watermark can remove rows",
    ),
    "dedup": (
        "withWatermark and dropDuplicatesWithinWatermark",
        "dropDuplicatesWithinWatermark, or the event time among the columns, so that the watermark can remove rows",
    ),
    "transformwithstate": ("a TTL or a timer for the state",) * 2,
    "withstate": ("a time-out of the state",) * 2,
    "": (
        "withWatermark, and a window of the event time among the keys",
        "if its windows are shorter than that, group by a window of the event time, so that the watermark can remove rows",
    ),
}
# Delays of a watermark, beside its windows, after which it must have removed rows.
WATERMARK_DELAYS = 3.0
# Factor and files by which those that wait grow with a backlog.
BACKLOG_GROWTH, BACKLOG_FILES = 1.2, 10
# Share of the lag in one Kafka partition of several.
LAG_SHARE, LAG_PARTITIONS = 0.5, 3
# Share of the tasks' and the batches' time, and seconds in all, from which collections of garbage matter; share of batches
# that spill.
GC_SHARE, GC_OF_BATCH, LEAST_GC_S, SPILLING = 0.1, 0.1, 5.0, 0.1
# Files of a sink in an hour, and their mean size (bytes), from which they are small.
FILES_AN_HOUR, SMALL_FILE = 1_000, 16e6
# Share of an executor's fair part of the work below which it idles, and of all slots above which others are loaded.
IDLE_PART, LOADED_PART = 0.1, 0.3
# Share of a batch in stages of one wave, and of an interval in such batches, from which their tasks bound growth; share of
# an interval if slots are this multiple of all stages' tasks.
ONE_WAVE, FULL_INTERVAL, PART_INTERVAL, SPARE_SLOTS = 0.6, 0.6, 0.3, 2
# Batches back to back of which a longer trigger saves some: their least number, their share of the time, and the part of a
# batch that does not depend on records; with that trigger, the part of the time in use.
RESTLESS_BATCHES, RESTLESS, RESTLESS_FIXED, RESTLESS_BUSY = 5, 0.8, 0.9, 0.5
# Multiple of a trigger that some batches keep, from which the usual one is far longer.
FAR = 2.0
# Multiples of the usual records, seconds and rate of a batch that a limit would prevent, and sources that have one.
SURGE_ROWS, SURGE_SECONDS, SURGE_RATE = 5.0, 3.0, 3.0
FILE_SOURCE = "FileStreamSource"
LIMITS = {"Kafka": "maxOffsetsPerTrigger", FILE_SOURCE: "maxFilesPerTrigger", "Delta": "maxFilesPerTrigger"}
# Part of `spark.locality.wait` for which a task is not launched though a slot is free, and its least seconds.
LOCALITY_PART, LOCALITY_S = 0.8, 0.5
# Share of failed attempts that is worth a look.
FAILED = 0.02


class Sureness(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    kind: str
    evidence: str
    change: str
    sure: Sureness = Sureness.MEDIUM


CHANGES = {
    Cause.TRIGGER: "a shorter trigger interval",
    Cause.LIMIT: "raise the limit of the source",
    Cause.SOURCE: "list fewer files, or ask the source less often",
    Cause.PLANNING: "simplify the plan, or read fewer files a batch",
    Cause.DRIVER: "let tasks write to the sink, or write in larger parts",
    Cause.COMMIT: "faster storage for the checkpoint, or longer batches",
    Cause.LONG_TASK: "divide the key or partition that has most records",
    Cause.FEW_TASKS: "more partitions",
    Cause.SINK: "write in larger parts, or to a faster sink",
    Cause.WAIT: "ask what its tasks wait for less often, or for more at once",
    Cause.MANY_TASKS: "fewer partitions",
    Cause.SLOTS: "a scheduler pool for each query (spark.scheduler.mode=FAIR), or more hosts",
    Cause.HOSTS: "more hosts, see the sizes",
    Cause.UNKNOWN: "look at the batches in Spark's web interface",
}

# Causes that only the number of slots tells apart.
OF_SLOTS = frozenset({Cause.FEW_TASKS, Cause.MANY_TASKS, Cause.SLOTS, Cause.HOSTS})

# Kinds of findings that say less than another one: fewer partitions, for example, come before more hosts.
WEAKER = {
    "partitions": ("hosts", "many_tasks", "sink", "wait", "short trigger"),
    "few_tasks": ("growth",),
    "long_task": ("growth",),
    "sink": ("growth", "short trigger"),
    "wait": ("growth", "short trigger"),
    "slots": ("short trigger",),
    "driver": ("short trigger",),
    "locality": ("slots", "growth"),
    "large limit": ("limit",),
    "small files": ("trigger",),
}


def findings_of(application: Application, target: float, *, explicit: bool = False) -> tuple[Finding, ...]:
    """Return findings about queries, then about the application.

    Args:
        target: Seconds.
        explicit: True if a person set it, so a long trigger within it is on purpose.
    """
    of_queries = (
        finding
        for query in application.queries.values()
        for finding in _of_query(application, query, target, explicit=explicit)
    )
    of_application = (rule(application) for rule in (_of_executors, _of_dynamic_allocation, _of_remarks))
    return (*of_queries, *chain.from_iterable(of_application))


def limit_of(query: LoggedQuery) -> tuple[str, float, str]:
    """Return a query's limit: in words, records per batch, and option; ("", inf, "") without one."""
    if most := _most_of_full(query, LIMIT_BATCHES):
        return f"{amount(most)} records", most, _offsets(query)
    if (number := steady_files(query)) and _overruns_trigger(query):
        return counted(number, "file"), statistics.median(batch.rows for batch in query.warm), "maxFilesPerTrigger"
    return "", math.inf, ""


def _most_of_full(query: LoggedQuery, least: int) -> float:
    """Return the most records of a batch if a limit fills most batches while more wait; 0 for fewer than `least`."""
    batches = [batch for batch in query.batches if batch.rows > 0]  # a limit fills cold ones too
    waiting = [batch for batch in batches if batch.behind > BEHIND * batch.rows]
    if len(batches) < least or len(waiting) < LIMITED * len(batches):
        return 0.0
    most = max(batch.rows for batch in waiting)
    full = sum(batch.rows >= FULL * most for batch in waiting)
    return most if full >= LIMITED * len(waiting) else 0.0


def _offsets(query: LoggedQuery) -> str:
    return "maxOffsetsPerTrigger" if any(source.startswith("Kafka") for source in query.sources) else ""


def steady_files(query: LoggedQuery) -> int:
    """Return the files of every batch if none waited for one; 0 otherwise."""
    if not any(source.startswith(FILE_SOURCE) for source in query.sources):
        return 0  # those of a table that a batch joins
    number, *others = {batch.files for batch in query.batches if batch.rows > 0} or {0}
    return number if not others and len(query.warm) >= LIMIT_BATCHES and _never_waits(query, query.warm) else 0


def _never_waits(query: LoggedQuery, batches: Sequence[LoggedBatch]) -> bool:
    interval = 0.0 if math.isnan(query.trigger) else query.trigger
    gaps = [b.start - max(a.end, a.start + interval) for a, b in pairwise(batches)]
    return statistics.median(gaps) <= max(0.3, 0.2 * interval)


def _overruns_trigger(query: LoggedQuery) -> bool:
    overran = (b.start - a.start for a, b in pairwise(query.batches) if a.seconds > query.trigger)
    return math.isnan(query.trigger) or max(overran, default=0.0) > LATE_START * query.trigger


def _of_query(application: Application, query: LoggedQuery, target: float, *, explicit: bool) -> list[Finding]:
    findings = []
    if query.failure:
        times = f" {query.failures} times, the last" if query.failures > 1 else ""
        evidence = f"{query.name} failed{times}: {query.failure}"
        findings.append(Finding(query.name, "failure", evidence, "mend the cause", Sureness.HIGH))
    warm = query.warm
    usual = statistics.median(batch.seconds for batch in warm) if warm else target
    if query.unfinished > max(target, UNFINISHED * usual):
        evidence = (
            f"a batch of {query.name} had run for {format_duration(query.unfinished)} when the query or the log ended"
        )
        change = "limit the records of a batch; more hosts if its tasks fill all slots"
        findings.append(Finding(query.name, "unfinished", evidence, change))
    if query.bounded:  # its purpose is not low latency, and it may be short
        if len(warm) >= LEAST_BATCHES:
            rules = [rule for rule in RULES if rule is not _files]
            return [*findings, *(finding for rule in rules for finding in rule(application, query, warm))]
        batches = [batch for batch in query.batches if batch.rows > 0]
        return [*findings, *_partitions(application, query, batches), *_failures(application, query, batches)]
    findings += _of_time(application, query, warm, target)
    if not explicit:
        findings += _long_trigger(query, warm)
    by_kind = {finding.kind: finding for finding in reversed(findings)}
    weaker = {kind for stronger, each in WEAKER.items() if stronger in by_kind for kind in each}
    findings = [finding for kind, finding in reversed(by_kind.items()) if kind not in weaker]
    in_time = Latency.logged(query, warm, target).in_time if warm else 1.0
    if not findings and in_time < 1 - LATE:
        findings += _of_late(application, query, warm, target)
    if not findings and in_time < 1 - LATE and len(warm) >= LEAST_BATCHES:
        evidence = f"{percent(1 - in_time)} of the records of {query.name} are late, for no cause that the log shows"
        findings.append(Finding(query.name, "late", evidence, CHANGES[Cause.UNKNOWN]))
    return findings


def _of_time(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch], target: float) -> Iterator[Finding]:
    if len(warm) >= LEAST_BATCHES:
        yield from _of_batches(application, query, warm, target)
        for rule in RULES:
            yield from rule(application, query, warm)
        for aimed in RULES_OF_TARGET:
            yield from aimed(application, query, warm, target)
    else:
        yield from _of_few(application, query, target)
    yield from _large_limit(query, target)
    yield from _starved(application, query)


# -- time of batches ---------------------------------------------------------------------------------------------------


def _of_batches(
    application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch], target: float
) -> Iterator[Finding]:
    text, _, option = limit_of(query)
    blocks = [warm[at : at + BATCHES_READ] for at in range(0, len(warm), BATCHES_READ)]
    blocks = [block for block in blocks if len(block) >= LEAST_BATCHES]
    causes = dict[Cause, list[Diagnosis]]()
    for block in blocks:
        traits = _traits(application, query, block, text, option)
        diagnosis = _diagnosed(application, query, block, target, traits)
        if diagnosis is not None and _is_known(application, diagnosis.cause):
            causes.setdefault(diagnosis.cause, []).append(diagnosis)
    shares = {cause: share for cause, each in causes.items() if (share := len(each) / len(blocks)) >= OFTEN}
    for cause, share in shares.items():
        sure = Sureness.HIGH if share >= SURE else Sureness.MEDIUM
        more, change = _slots(application, query) if cause is Cause.SLOTS else ("", CHANGES[cause])
        yield Finding(query.name, cause.name.lower(), causes[cause][-1].sentence + more, change, sure)
    if text and Cause.LIMIT not in shares:
        evidence = f"a batch of {query.name} always reads {text}, as if more waited"
        yield Finding(query.name, "limit", evidence, f"raise {option or 'the limit of its source'}")


def _large_limit(query: LoggedQuery, target: float) -> Iterator[Finding]:
    most = _most_of_full(query, LEAST_LATE)
    # Of two batches, the first is cold.
    takes = statistics.median_low(batch.seconds for batch in query.batches if batch.rows > 0) if most else 0.0
    if takes > target:
        each = f"each reads about {amount(most)} records, as if a limit filled it"
        evidence = f"a batch of {query.name} takes {format_duration(takes)}; {each}"
        fewer = amount(max(1, round(most * target / 2 / takes)))
        change = f"{_offsets(query) or 'a limit of its source'} of at most {fewer} records"
        yield Finding(query.name, "large limit", evidence, change)


def _long_trigger(query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    seconds = [batch.seconds for batch in warm or query.batches]
    takes = statistics.median(seconds) if len(warm) >= LEAST_BATCHES else min(seconds)  # few are cold
    # As files should be, also of tables and functions.
    large = any(stage.written for batch in query.batches for stage in batch.stages) or "filesink" in query.sink.lower()
    if query.trigger >= LONG_TRIGGER_S and query.trigger > LONG_TRIGGER * takes and not large:
        evidence = f"{query.name} starts every {format_duration(query.trigger)} a batch that takes {format_duration(takes)}"
        change = f"trigger(availableNow=True) from a scheduler, or an interval near {format_duration(2 * takes)}"
        yield Finding(query.name, "trigger", evidence, change)


def _starved(application: Application, query: LoggedQuery) -> Iterator[Finding]:
    batches = list(query.batches)[COLD_BATCHES:] if application.executors else []
    others = [(each.name, list(each.batches)) for each in application.queries.values() if each is not query]
    starved = []
    for batch in batches:
        waits = (_wait_behind(others, stage, application.slots(stage.times.begun)) for stage in batch.stages)
        longest = max(waits, default=(0.0, ""))
        overruns = math.isnan(query.trigger) or batch.seconds > query.trigger
        if overruns and longest[0] > batch.seconds / 2:
            starved.append((batch, longest[1]))
    lost = math.fsum(batch.seconds for batch, _ in starved)
    if starved and lost >= OFTEN * (batches[-1].end - batches[0].start):
        name = Counter(holder for _, holder in starved).most_common(1)[0][0]
        evidence = (
            f"{counted(len(starved), 'batch', 'batches')} of {query.name} took up to "
            f"{format_duration(max(batch.seconds for batch, _ in starved))}, mostly to wait for a stage of {name} to end"
        )
        yield Finding(query.name, Cause.SLOTS.name.lower(), evidence, _slots(application, query)[1])


def _wait_behind(others: Sequence[tuple[str, Sequence[LoggedBatch]]], stage: Stage, slots: int) -> tuple[float, str]:
    """Return the seconds that a stage waited behind another query's, and that query's name."""
    times, longest = stage.times, (0.0, "")
    begun, until = times.begun, times.begun + stage.delay - (times.run / slots if times.tasks > slots else 0.0)
    if until - begun < LONG_BATCH_S:
        return longest
    for name, batches in others:
        first = bisect.bisect_left(batches, begun, key=lambda batch: batch.end)
        for batch in takewhile(lambda each: each.start < until, islice(batches, first, None)):
            for other in (each.times for each in batch.stages):
                wait = min(until, other.ended) - max(begun, other.begun)
                full = other.run >= FILLED * slots * (other.ended - other.begun)
                if full and wait - other.longest >= LONG_BATCH_S:  # a fair scheduler waits for a task to end, too
                    longest = max(longest, (wait, name))
    return longest


def _slots(application: Application, query: LoggedQuery) -> tuple[str, str]:
    begun, ended = query.batches[0].start, query.batches[-1].end
    run = {
        each.name: math.fsum(batch.run for batch in each.batches if begun <= batch.end and batch.start <= ended)
        for each in application.queries.values()
        if each is not query
    }
    name = max(run, key=lambda each: run[each], default="")
    more = f"; most of those of others are of {name}" if name and run[name] > 0 else ""
    if not more and application.others_within(begun, ended):
        more = "; jobs of no query ran meanwhile"
    fair = application.settings.get("spark.scheduler.mode", "").upper() == "FAIR"
    return more, "more hosts, or more weight for its scheduler pool" if fair else CHANGES[Cause.SLOTS]


def _of_few(application: Application, query: LoggedQuery, target: float) -> Iterator[Finding]:
    batches = [batch for batch in query.batches if batch.rows > 0]
    yield from _partitions(application, query, batches or query.batches)
    yield from _failures(application, query, query.batches)
    yield from _of_late(application, query, batches, target)


def _of_late(
    application: Application, query: LoggedQuery, batches: Sequence[LoggedBatch], target: float
) -> Iterator[Finding]:
    """Yield the common cause of late batches."""
    # A record waits for the batch before its own too. The first batch is long as it is cold.
    follows = ((a, query.trigger > 0 or b.start - a.end <= POLL_S) for a, b in pairwise(batches[1:]))
    waits = [0.0, 0.0, *(before.seconds if at_once else 0.0 for before, at_once in follows)]
    most = [max(target / 2, target - wait) for wait in waits]
    late = [times_of(each) for each, seconds in zip(batches, most, strict=False) if each.seconds > seconds and each.stages]
    if late and len(late) + (query.unfinished > most[-1]) >= LEAST_LATE:
        diagnosis = bottleneck(f"{query.name} is late", late, _traits(application, query, batches))
        if _is_known(application, diagnosis.cause):
            cause = diagnosis.cause
            more, change = _slots(application, query) if cause is Cause.SLOTS else ("", CHANGES[cause])
            yield Finding(query.name, cause.name.lower(), diagnosis.sentence + more, change)


def _is_known(application: Application, cause: Cause) -> bool:
    return cause is not Cause.UNKNOWN and (cause not in OF_SLOTS or bool(application.executors))


def _is_late(query: LoggedQuery, block: Sequence[LoggedBatch], target: float) -> bool:
    latency = Latency.logged(query, block, target)
    rate = math.fsum(batch.rows for batch in block) / max(block[-1].end - block[0].start, 1e-9)
    return latency.in_time < 1 - LATE or block[-1].behind > rate * target


def _diagnosed(
    application: Application, query: LoggedQuery, block: Sequence[LoggedBatch], target: float, traits: QueryTraits
) -> Diagnosis | None:
    """Return why batches are late or long, or None."""
    begun, ended = block[0].start, block[-1].end
    others = application.others_within(begun, ended)
    times = [times_of(batch, others) for batch in block]
    if _is_late(query, block, target):
        return diagnose(query.name, times, target, traits)
    with_stages = [each for each in times if each.stages]
    takes = statistics.median(batch.seconds for batch in block)
    if takes < LONG_BATCH_S or len(with_stages) < LEAST_BATCHES:
        return None
    diagnosis = bottleneck(f"{query.name} takes {format_duration(takes)} a batch", with_stages, traits)
    return diagnosis if _worth_removing(diagnosis.cause, with_stages, takes, traits, target) else None


def _worth_removing(cause: Cause, batches: Sequence[BatchTimes], takes: float, traits: QueryTraits, target: float) -> bool:
    if cause in (Cause.LONG_TASK, Cause.SINK, Cause.WAIT):
        longest = statistics.median(max(stage.longest for stage in batch.stages) for batch in batches)
        # They may work, and wait for nothing: then they matter only where records would.
        writes = any(stage.writes for batch in batches for stage in batch.stages)
        unsure = cause is Cause.WAIT or (cause is Cause.SINK and writes)
        least = FULL_INTERVAL * _interval(traits.trigger, target) if unsure else 0.0
        return takes >= least and longest >= max(LONG_BATCH_S, takes / 2)
    if cause is Cause.DRIVER:
        part = statistics.median(batch.parts[cause] for batch in batches)
        bounds = takes >= FULL_INTERVAL * _interval(traits.trigger, target)
        return traits.function and bounds and part >= max(LONG_BATCH_S, takes / 2)
    return cause is Cause.MANY_TASKS


def _interval(trigger: float, target: float) -> float:
    return target / 2 if math.isnan(trigger) else trigger


def _traits(
    application: Application, query: LoggedQuery, batches: Sequence[LoggedBatch], limited: str = "", option: str = ""
) -> QueryTraits:
    slots, discards = application.slots(batches[-1].start), "NoopTable" in query.sink
    return QueryTraits(query.trigger, limited, option, query.function, slots, discards)


# -- rules over the log ------------------------------------------------------------------------------------------------


def _partitions(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    shares, tasks, records, had = [], [], [], []
    for batch in warm if application.executors else ():
        slots = application.slots(batch.start)
        many = [
            each
            for each in batch.stages
            if (each.times.shuffled or not each.records)  # the source sets the others
            and each.times.tasks >= PARTITIONS_A_SLOT * slots
            and each.records < FEW_RECORDS * each.times.tasks
            and each.times.run < SHORT_TASK_S * each.times.tasks
        ]
        shares.append(math.fsum(each.times.seconds for each in many) / max(batch.seconds, 1e-9))
        tasks += [each.times.tasks for each in many]
        records += [each.records / each.times.tasks for each in many]
        had += [slots] * len(many)
    if tasks and statistics.median(shares) >= PARTITIONS_SHARE:
        number, slots = round(statistics.median(tasks)), round(statistics.median(had))
        evidence = (
            f"{query.name} shuffles to {number} partitions on {counted(slots, 'slot')} with "
            f"{amount(statistics.median(records))} records each, which take {percent(statistics.median(shares))} of a batch"
        )
        change = (
            f"spark.sql.shuffle.partitions={partitions_on(slots)}; with state, elastream repartition or a new checkpoint"
        )
        yield Finding(query.name, "partitions", evidence, change, Sureness.HIGH)


def _state(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    if not (stateful := _growing_state(query)):
        return
    size = f"{amount(stateful[0].state)} to {amount(stateful[-1].state)} rows in {format_duration(_duration_of(stateful))}"
    if all(math.isnan(batch.watermark) for batch in stateful):
        evidence = f"the state of {query.name} grew from {size}, and no watermark ends it"
        yield Finding(query.name, "state", evidence, _end_of_state(query)[0], Sureness.HIGH)
    elif not _removes(stateful) and _duration_of(stateful) > _removal_delay(query, stateful):
        evidence = f"the state of {query.name} grew from {size}, and its watermark removed nothing"
        yield Finding(query.name, "state", evidence, _end_of_state(query)[1])


def may_end_state(query: LoggedQuery) -> bool:
    """Return True if a watermark may still end the growing state."""
    stateful = _growing_state(query)
    watermark = any(not math.isnan(batch.watermark) for batch in stateful)
    return watermark and not _removes(stateful) and not _duration_of(stateful) > _removal_delay(query, stateful)


def _growing_state(query: LoggedQuery) -> list[LoggedBatch]:
    stateful = [batch for batch in query.batches if not math.isnan(batch.state) and batch.rows > 0]
    if len(stateful) < STATE_BATCHES or stateful[-1].state < STATE_GROWTH * max(1.0, stateful[0].state):
        return []
    grows = sum(b.state > a.state for a, b in pairwise(stateful))
    thirds = stateful[-1 - len(stateful) // 3 :], stateful
    gain, usual = ((part[-1].state - part[0].state) / math.fsum(batch.rows for batch in part[1:]) for part in thirds)
    return [] if grows < STATE_ADDS * (len(stateful) - 1) or gain < STATE_LAST_THIRD * usual else stateful


def _duration_of(batches: Sequence[LoggedBatch]) -> float:
    return batches[-1].end - batches[0].start


def _removes(stateful: Sequence[LoggedBatch]) -> bool:
    return any(batch.removed for batch in stateful)


def _removal_delay(query: LoggedQuery, stateful: Sequence[LoggedBatch]) -> float:
    """Return seconds until a watermark removes rows; NaN if unknown."""
    delays = [delay for batch in stateful if (delay := batch.newest - batch.watermark) >= 0]  # NaN is not
    operator = query.stateful.lower()
    window = 0.0 if "dedup" in operator else NAN if "withstate" in operator else query.window
    return WATERMARK_DELAYS * statistics.median(delays) + window if delays else NAN


def _end_of_state(query: LoggedQuery) -> tuple[str, str]:
    return next((changes for name, changes in ENDS_OF_STATE.items() if name in query.stateful.lower()), ENDS_OF_STATE[""])


def _lag(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    lags = [batch.lag for batch in warm if batch.lag is not None and batch.lag.partitions >= LAG_PARTITIONS]
    names = Counter(lag.partition for lag in lags if lag.records > LAG_SHARE * lag.total)
    if not names or len(lags) < len(warm) / 2:
        return
    name, times = names.most_common(1)[0]
    if times >= SURE * len(warm):
        share = statistics.median(lag.records / lag.total for lag in lags if lag.partition == name)
        evidence = f"{name} has {percent(share)} of the lag of {lags[-1].partitions} partitions of {query.name}"
        yield Finding(
            query.name, "partition lag", evidence, "keys that spread over partitions, or minPartitions", Sureness.HIGH
        )


def _memory(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    spilling = [batch for batch in warm if any(stage.spilled > 0 for stage in batch.stages)]
    if len(spilling) >= max(2, SPILLING * len(warm)):
        mean = math.fsum(stage.spilled for batch in spilling for stage in batch.stages) / len(spilling)
        evidence = (
            f"{percent(len(spilling) / len(warm))} of the batches of {query.name} spill {amount(mean / 1e6)} MB to disk"
        )
        yield Finding(query.name, "spill", evidence, "more partitions, or more memory for executors", Sureness.HIGH)
    # A task counts all garbage that its executor collects while it runs, whatever made it.
    shares = [
        min(1.0, gc / batch.run)
        for batch in warm
        if (gc := math.fsum(stage.gc for stage in batch.stages)) > GC_OF_BATCH * batch.seconds and batch.run > 0
    ]
    often = [share for share in shares if share > GC_SHARE]
    if len(often) > SURE * len(warm) and math.fsum(s.gc for batch in warm for s in batch.stages) >= LEAST_GC_S:
        evidence = f"the tasks of {query.name} collect garbage for {percent(statistics.median(often))} of their time"
        stateful = any(batch.state > 0 for batch in warm)
        change = "more memory for executors" + (", or state in RocksDB" if stateful and not query.rocksdb else "")
        yield Finding(query.name, "garbage", evidence, change)


def _backlog(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    waiting = [batch.files_behind for batch in warm if batch.files_behind >= 0]
    thirds = waiting[: 1 + len(waiting) // 3], waiting[-1 - len(waiting) // 3 :]
    first, last = (statistics.median(third or [0.0]) for third in thirds)
    if query.waiting_files and last > BACKLOG_GROWTH * first + BACKLOG_FILES:
        size = f"{amount(waiting[0])} to {amount(waiting[-1])} in {format_duration(warm[-1].end - warm[0].start)}"
        evidence = f"the files that wait for {query.name} grew from {size}"
        yield Finding(query.name, "backlog", evidence, "more hosts if its tasks fill them, or raise maxFilesPerTrigger")


def _files(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    stages = [stage for batch in warm for stage in batch.stages]
    files, written = sum(stage.files for stage in stages), math.fsum(stage.written for stage in stages)
    hours = (warm[-1].end - warm[0].start) / 3600
    if files and written and files > FILES_AN_HOUR * hours and written < SMALL_FILE * files:
        evidence = (
            f"{query.name} writes {amount(files / hours)} files an hour of {amount(written / files / 1e3)} kB on average"
        )
        yield Finding(query.name, "small files", evidence, "longer batches, or coalesce before the sink", Sureness.HIGH)


def _failures(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    failed = sum(stage.failed for batch in warm for stage in batch.stages)
    tasks = sum(stage.times.tasks for batch in warm for stage in batch.stages)
    if failed > FAILED * tasks:
        evidence = f"{amount(failed)} attempts of {amount(tasks)} tasks of {query.name} failed"
        yield Finding(query.name, "failed tasks", evidence, "look at the logs of its executors", Sureness.HIGH)


def _locality(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch]) -> Iterator[Finding]:
    wait = application.time("spark.locality.wait", "3s")
    if len(application.queries) > 1 or len(application.working) < 2 or wait < LOCALITY_S:
        return  # other applications may use the slots
    waits = []
    for batch in warm:
        slots = 0 if application.others_within(batch.start, batch.end) else application.slots(batch.start)
        times = [stage.times for stage in batch.stages]
        delays = [stage.delay for stage in batch.stages if sum(t.tasks for t in times if t.overlap(stage.times)) <= slots]
        waits += [max(delays)] if delays and max(delays) >= LOCALITY_PART * wait else []
    if len(waits) >= OFTEN * len(warm):
        evidence = (
            f"tasks of {query.name} wait {format_duration(statistics.median(waits))} for an executor while others are "
            f"free, in {percent(len(waits) / len(warm))} of its batches (spark.locality.wait is {format_duration(wait)})"
        )
        yield Finding(query.name, "locality", evidence, "spark.locality.wait=200ms", Sureness.HIGH)


Rule = Callable[[Application, LoggedQuery, Sequence[LoggedBatch]], Iterator[Finding]]
RULES: tuple[Rule, ...] = (_partitions, _state, _lag, _backlog, _memory, _files, _failures, _locality)


def _growth(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch], target: float) -> Iterator[Finding]:
    interval = _interval(query.trigger, target)
    bound, spare = [], []
    for batch in warm if application.executors else ():
        slots = application.slots(batch.start)
        narrow = [each.times for each in batch.stages if each.times.tasks <= slots and _is_balanced(each.times)]
        if narrow and math.fsum(each.seconds for each in narrow) >= ONE_WAVE * batch.seconds:
            bound.append((batch.seconds, max(narrow, key=lambda each: each.seconds), slots))
            spare.append(slots >= SPARE_SLOTS * max(each.times.tasks for each in batch.stages))
    if len(bound) < SURE * len(warm):
        return
    takes = statistics.median(each[0] for each in bound)
    idle = all(spare) and query.trigger > 0 and takes >= LONG_BATCH_S
    if takes < (PART_INTERVAL if idle else FULL_INTERVAL) * interval:
        return
    tasks, slots = (round(statistics.median(each)) for each in zip(*((s.tasks, had) for _, s, had in bound), strict=True))
    evidence = (
        f"{counted(tasks, 'task')} on {counted(slots, 'slot')} set the {format_duration(takes)} of a batch of "
        f"{query.name}, {percent(takes / interval)} of what it may take: no host makes room for more records"
    )
    shuffled = statistics.median(stage.shuffled for _, stage, _ in bound) >= 0.5
    change = f"more {more_partitions(shuffled=shuffled, function=query.function)}"
    yield Finding(query.name, "growth", evidence, change)


def _is_balanced(stage: StageTimes) -> bool:
    return LONG_SHARE * stage.seconds < stage.longest <= LONG_TASK * stage.run / stage.tasks


def _restless(
    application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch], target: float
) -> Iterator[Finding]:
    takes = statistics.median(batch.seconds for batch in warm)
    busy = math.fsum(batch.seconds for batch in warm) / (warm[-1].end - warm[0].start)
    if len(warm) < RESTLESS_BATCHES or takes < FAR * query.trigger or busy < RESTLESS:
        return
    # A cold start or a busy machine only raises the cost of a record, so the records explain no more of a usual batch.
    of_tasks = bool(warm[-1].stages) and not query.function
    # A log may lack the stages of a batch.
    worked = [batch for batch in query.batches if batch.rows > 0 and (batch.run > 0 or not of_tasks)]
    at_once = [batch.run / max(1e-3, times_of(batch).parts[Cause.HOSTS]) for batch in warm if of_tasks and batch.run > 0]
    if not worked:
        return
    least = min((batch.run if of_tasks else batch.seconds) / batch.rows for batch in worked)
    each = least / max(1.0, statistics.median(at_once or [1.0]))
    by_records = each * statistics.median(batch.rows for batch in warm) / takes
    fixed = (1.0 - by_records) * takes
    interval = longest_trigger(target, fixed, by_records)
    if by_records <= 1.0 - RESTLESS_FIXED and interval > takes and fixed / interval + by_records < RESTLESS_BUSY:
        evidence = (
            f"{query.name} starts a batch of {format_duration(takes)} right after the other, and at least "
            f"{percent(fixed / takes)} of it does not depend on its records"
        )
        yield Finding(query.name, "short trigger", evidence, f"trigger(processingTime='{interval:.1f} seconds')")


def _surge(application: Application, query: LoggedQuery, warm: Sequence[LoggedBatch], target: float) -> Iterator[Finding]:
    option = next((LIMITS[kind] for kind in LIMITS for each in query.sources if each.startswith(kind)), "")
    batches = list(query.batches)
    at = max(range(len(batches)), key=lambda number: batches[number].rows)
    largest = batches[at]
    usually = math.fsum(batch.rows for batch in warm) / (warm[-1].end - warm[0].start)
    if at and largest.rows < SURGE_RATE * usually * (largest.start - batches[at - 1].start):
        return  # it came in while the batch before was slow
    rows, takes = (statistics.median(each) for each in zip(*((b.rows, b.seconds) for b in warm), strict=True))
    unusual = largest.seconds > max(target, SURGE_SECONDS * takes) and largest.rows > SURGE_ROWS * rows
    if not (option and unusual) or limit_of(query)[0] or takes > target / 2:
        return
    evidence = (
        f"a batch of {query.name} took {amount(largest.rows)} records and {format_duration(largest.seconds)}; usual ones "
        f"take {amount(round(rows))} and {format_duration(takes)}"
    )
    most = amount(round(largest.rows * target / 2 / largest.seconds))
    yield Finding(query.name, "surge", evidence, f"{option}, so that a batch has at most {most} records", Sureness.HIGH)


RuleOfTarget = Callable[[Application, LoggedQuery, Sequence[LoggedBatch], float], Iterator[Finding]]
RULES_OF_TARGET: tuple[RuleOfTarget, ...] = (_growth, _restless, _surge)


# -- executors ---------------------------------------------------------------------------------------------------------


def _of_executors(application: Application) -> Iterator[Finding]:
    begun, ended = application.span
    core_seconds = {
        each.id: each.cores * seconds
        for each in application.working
        if (seconds := min(each.removed, ended) - max(each.added, begun)) > 0.5 * (ended - begun)
    }
    loads = {each.id: each.run / core_seconds[each.id] for each in application.working if each.id in core_seconds}
    if len(loads) < 2:
        return
    wait = format_duration(application.time("spark.locality.wait", "3s"))
    change = "restart the query so that its state spreads, or a shorter spark.locality.wait; Autopilot moves state"
    mean = statistics.mean(loads.values())
    batches = [batch for query in application.queries.values() for batch in query.warm if batch.stages]
    widest = [max(stage.times.tasks for stage in batch.stages) for batch in batches]
    idle = [id for id, load in loads.items() if load < IDLE_PART * mean]
    if idle and widest and statistics.median(widest) >= application.slots(ended) and max(loads.values()) > LOADED_PART:
        evidence = (
            f"{counted(len(idle), 'executor')} of {len(loads)} did less than {percent(IDLE_PART)} of the mean work, while "
            f"the busiest was full for {percent(max(loads.values()))} of the time (spark.locality.wait is {wait})"
        )
        yield Finding("application", "idle executors", evidence, change)
        return
    for query in application.queries.values():
        if few := _few_executors(query, core_seconds, application.cores_each // application.task_cpus):
            yield Finding(query.name, "idle executors", f"{few} (spark.locality.wait is {wait})", change)


def _few_executors(query: LoggedQuery, core_seconds: Mapping[str, float], slots: float) -> str:
    """Return how few executors run tasks with state; empty if more would not help.

    Args:
        slots: Of an executor.
    """
    runs = {id: query.shuffled.get(id, 0.0) for id in core_seconds} if query.stateful else {}
    widths = [max((s.times.tasks for s in batch.stages if s.times.shuffled), default=0) for batch in query.warm]
    if not any(runs.values()) or not widths:
        return ""
    tasks = round(statistics.median(widths))
    useful = min(len(runs), max(1, tasks))
    few = [id for id, run in runs.items() if run > IDLE_PART * math.fsum(runs.values()) / useful]
    full = max(run / core_seconds[id] for id, run in runs.items())
    if len(few) > useful / 2 or tasks <= slots * len(few) or full <= LOADED_PART:
        return ""
    return (
        f"all {tasks} tasks with state of {query.name} run on {counted(len(few), 'executor')} of {len(runs)}, "
        f"which they fill for {percent(full)} of the time"
    )


def _of_dynamic_allocation(application: Application) -> Iterator[Finding]:
    enabled = application.enabled("spark.dynamicAllocation.enabled")
    tracking = application.enabled("spark.dynamicAllocation.shuffleTracking.enabled", default=True)
    service = application.enabled("spark.shuffle.service.enabled")  # without need of tracking
    executors, least = application.working, application.settings.get("spark.dynamicAllocation.minExecutors", "0")
    batches = [batch for query in application.queries.values() for batch in query.batches]
    shuffles = any(stage.times.shuffled for batch in batches for stage in batch.stages)
    if not (enabled and tracking and shuffles) or service or len(executors) < 2:
        return
    begun, ended = application.span
    paid = math.fsum(each.cores * max(0.0, min(each.removed, ended) - max(each.added, begun)) for each in executors)
    used = math.fsum(each.run for each in executors)
    stayed = sum(each.removed >= ended for each in executors) - (int(least) if least.isdecimal() else 0)
    if paid and used < LOADED_PART * paid and stayed >= 2:
        evidence = f"dynamic allocation kept {stayed} executors, which were busy {percent(used / paid)}"
        change = "spark.dynamicAllocation.maxExecutors, or shuffleTracking.timeout if idle ones stay; or Autopilot"
        yield Finding("application", "dynamic allocation", evidence, change)


def _of_remarks(application: Application) -> Iterator[Finding]:
    for text, share in application.remarks.items():
        if share >= OFTEN:
            evidence = f"Elastream itself says so for {percent(share)} of its decisions: {text}"
            yield Finding("application", "remark", evidence, "see elastream explain", Sureness.MEDIUM)
