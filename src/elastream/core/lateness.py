"""Diagnosis of late queries: where the time of their micro-batches goes, and whether more hosts help.

The longest part of a batch names the cause. More hosts shorten only tasks, and only if there are more tasks than slots.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from elastream.core.wording import counted
from elastream.units import format_duration

NAN = float("nan")
# Fewest batches that name a cause, and the newest ones that are read.
LEAST_BATCHES, BATCHES_READ = 3, 7
# A query waits for its trigger if it idles for more than this share of the time between two starts.
WAITS = 0.05
# A long task exceeds this multiple of the other tasks' mean, and this share of the stage's time.
LONG_TASK, LONG_SHARE = 2.0, 0.5
# Tasks that need less than this share of a batch, on all slots, are not why a limited source falls behind.
CRITICAL = 0.5
# A stage whose tasks run for less than this share of its slots' time waits for slots, or for its tasks to be launched.
FILLED = 0.4
# Tasks a slot from which launching them takes that time.
MANY_TASKS = 10
# Tasks without CPU for more than this share of their time wait for something else. On hosts that other programs load, tasks
# that work have been without a core for 86% of it.
IDLE_TASKS = 0.9


class Cause(StrEnum):
    TRIGGER = "its trigger"
    LIMIT = "the limit of its source"
    SOURCE = "asking its source"
    PLANNING = "planning"
    DRIVER = "the driver"
    COMMIT = "the checkpoint"
    LONG_TASK = "one long task"
    FEW_TASKS = "too few tasks"
    SINK = "tasks that wait for a sink"
    WAIT = "tasks that wait"
    MANY_TASKS = "too many tasks"
    SLOTS = "slots that others use"
    HOSTS = "too few hosts"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Cause of a query's lateness.

    Attributes:
        hosts_help: False if more hosts do not help.
        slots: Most slots that help; 0 if unknown.
        sentence: The cause and what helps; empty before it is known.
        measured: False if the source does not report its backlog, so the latency is unknown.
    """

    cause: Cause = Cause.UNKNOWN
    hosts_help: bool = True
    sentence: str = ""
    slots: float = 0.0
    measured: bool = True


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One completed stage of a batch; `begun` and `ended` are epoch seconds.

    Attributes:
        run: Seconds that all tasks ran.
        waited: Seconds that all tasks waited for shuffle blocks.
        shuffled: True if it reads a shuffle.
        python: True if its tasks hand records to Python, whose CPU time Spark does not count.
        writes: True if that Python code returns nothing, so it only writes to a sink.
    """

    begun: float
    ended: float
    tasks: int
    run: float
    longest: float
    cpu: float = NAN
    waited: float = 0.0
    shuffled: bool = False
    python: bool = False
    writes: bool = False

    @property
    def waits(self) -> bool:
        """Return True if its tasks use hardly any CPU."""
        return self.run - self.waited - self.cpu > IDLE_TASKS * self.run

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    def overlap(self, other: "StageTimes") -> float:
        """Return the seconds for which both stages lasted."""
        return max(0.0, min(self.ended, other.ended) - max(self.begun, other.begun))


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """One committed batch.

    Attributes:
        durations: Seconds of the parts of its trigger, by Spark's names.
        stages: Its completed stages; empty if unknown.
        others: Jobs of no query, as (begin, end) in epoch seconds. Some may be the batch's, if the user named them.
    """

    start: float
    seconds: float
    durations: Mapping[str, float] = field(default_factory=dict)
    stages: Sequence[StageTimes] = ()
    others: Sequence[tuple[float, float]] = ()

    @property
    def parts(self) -> Mapping[Cause, float]:
        """Return the seconds of the batch's parts, by cause; HOSTS stands for tasks."""
        took = self.durations
        jobs = _union([(stage.begun, stage.ended) for stage in self.stages])
        return {
            Cause.SOURCE: took.get("latestOffset", 0.0) + took.get("getBatch", 0.0),
            Cause.PLANNING: took.get("queryPlanning", 0.0),
            Cause.COMMIT: took.get("walCommit", 0.0) + took.get("commitOffsets", 0.0) + took.get("commitBatch", 0.0),
            Cause.HOSTS: jobs,
            Cause.DRIVER: max(0.0, took.get("addBatch", 0.0) - jobs),
        }

    @property
    def foreign(self) -> float:
        """Return the batch's seconds in which jobs of no query ran."""
        end = self.start + self.seconds
        return _union([(max(begin, self.start), min(until, end)) for begin, until in self.others])


@dataclass(frozen=True, slots=True)
class QueryTraits:
    """Traits of a query that its batches do not show.

    Attributes:
        trigger: Interval (seconds); NaN without one.
        limited: Most that a batch reads of a limited source, such as "1 file"; empty without.
        option: Name of the option that sets this limit.
        function: True if it hands batches to a function (`foreachBatch`).
        slots: Tasks that run at once on all hosts, at least 1.
        discards: True if its sink writes nothing (`noop`).
    """

    trigger: float = NAN
    limited: str = ""
    option: str = ""
    function: bool = False
    slots: int = 1
    discards: bool = False


def diagnose(query: str, batches: Sequence[BatchTimes], target: float, traits: QueryTraits) -> Diagnosis:
    """Return why a late query is late, from its newest warm batches with records.

    Args:
        target: Target latency (seconds).
    """
    batches = [batch for batch in batches if batch.stages][-BATCHES_READ:]
    if len(batches) < LEAST_BATCHES:
        return Diagnosis()
    takes, parts = _medians(batches)
    every = max(takes, traits.trigger)  # `takes` if the trigger is NaN
    waits = every - takes
    if not traits.limited and every + takes <= target:
        return Diagnosis()  # it catches up after slower batches, such as the first ones
    critical = statistics.median(
        math.fsum(max(stage.longest, stage.run / traits.slots) for stage in batch.stages) for batch in batches
    )
    quick = critical < CRITICAL * takes and parts[Cause.DRIVER] < CRITICAL * takes
    if traits.limited and (quick or waits > WAITS * every):
        return _limit(query, traits)
    if waits > WAITS * every and (2 * takes <= target or every > target or waits > max(parts.values())):
        return _trigger(query, every, takes, target)
    return bottleneck(f"{query} is late", batches, traits)


def bottleneck(claim: str, batches: Sequence[BatchTimes], traits: QueryTraits) -> Diagnosis:
    """Return the cause of the longest part of the newest batches; `claim` begins its sentence."""
    takes, parts = _medians(batches)
    largest = max(parts, key=lambda cause: parts[cause])
    if largest is Cause.HOSTS:
        return _of_tasks(claim, batches, traits)
    if largest is Cause.DRIVER and statistics.median(batch.foreign for batch in batches) > CRITICAL * parts[largest]:
        return Diagnosis()  # jobs that may be its own
    return _of_driver(claim, largest, parts[largest], takes, function=traits.function)


def _medians(batches: Sequence[BatchTimes]) -> tuple[float, dict[Cause, float]]:
    parts = [batch.parts for batch in batches]
    usual = {cause: statistics.median(each[cause] for each in parts) for cause in parts[0]}
    return statistics.median(batch.seconds for batch in batches), usual


def unjudged(query: str, limited: str) -> Diagnosis:
    """Return the diagnosis of a limited source that does not report its backlog."""
    return Diagnosis(
        sentence=f"the latency of {query} is unknown: a batch reads at most {limited} of a source that does not report "
        "what waits, so no host is released",
        measured=False,
    )


def _limit(query: str, traits: QueryTraits) -> Diagnosis:
    raised = f"raise {traits.option}" if traits.option else "raise the limit"
    sentence = f"{query} is late because a batch reads at most {traits.limited} of its source while more wait: {raised}"
    return _no_host_helps(Cause.LIMIT, sentence)


def _trigger(query: str, every: float, takes: float, target: float) -> Diagnosis:
    possible = math.ceil(10 * 1.05 * (every + takes)) / 10
    trigger = 0.9 * (target - takes)
    shorter = f"a trigger of at most {format_duration(trigger)}" if trigger > takes else "no trigger interval"
    return _no_host_helps(
        Cause.TRIGGER,
        f"{query} is late because of its trigger: batches start every {format_duration(every)} and take "
        f"{format_duration(takes)}, so records may wait {format_duration(every + takes)} (set {shorter}, or a target of "
        f"{possible:g} s)",
    )


def _of_tasks(claim: str, batches: Sequence[BatchTimes], traits: QueryTraits) -> Diagnosis:
    """Return the cause of most stages' time, with its usual longest stage."""
    slots, by_cause = traits.slots, dict[Cause, list[StageTimes]]()
    for batch in batches:
        for stage in batch.stages:
            by_cause.setdefault(_of_stage(stage, batch, traits), []).append(stage)
    seconds = {cause: math.fsum(stage.seconds for stage in stages) for cause, stages in by_cause.items()}
    cause = max(seconds, key=lambda each: seconds[each])
    if seconds[cause] < CRITICAL * math.fsum(seconds.values()):
        return Diagnosis()
    of_batches = [[stage for stage in batch.stages if _of_stage(stage, batch, traits) is cause] for batch in batches]
    longest = [max(each, key=lambda stage: stage.seconds) for each in of_batches if each]
    stage = sorted(longest, key=lambda stage: stage.seconds)[(len(longest) - 1) // 2]
    match cause:
        case Cause.LONG_TASK:
            return _long_task(claim, stage, slots)
        case Cause.SINK | Cause.WAIT:
            return _waiting_tasks(claim, cause, stage, slots)
        case Cause.FEW_TASKS:
            return _few_tasks(claim, stage, slots, function=traits.function)
        case Cause.MANY_TASKS:
            return _many_tasks(claim, stage)
        case Cause.SLOTS:
            return _waits_for_slots(claim, stage)
    waits = ", or its Python code waits for a sink or service" if stage.python else ""
    return Diagnosis(Cause.HOSTS, sentence=f"{claim}, as its tasks fill {counted(slots, 'slot')}{waits}")


def _of_stage(stage: StageTimes, batch: BatchTimes, traits: QueryTraits) -> Cause:
    slots = traits.slots
    dominated = stage.longest > LONG_SHARE * stage.seconds
    # Stages that run at once share the slots.
    run = math.fsum(each.run * each.overlap(stage) / each.seconds for each in batch.stages if each.seconds > 0)
    if not dominated and run < FILLED * slots * stage.seconds:
        return Cause.MANY_TASKS if stage.tasks > MANY_TASKS * slots else Cause.SLOTS
    if dominated and stage.tasks > 1 and stage.longest > LONG_TASK * _mean_of_others(stage):
        return Cause.LONG_TASK
    if stage.waits and (stage.writes or not stage.python):
        return Cause.WAIT if traits.discards else Cause.SINK
    return Cause.FEW_TASKS if _in_one_wave(stage, slots) else Cause.HOSTS


def _mean_of_others(stage: StageTimes) -> float:
    return (stage.run - stage.longest) / (stage.tasks - 1)


def _in_one_wave(stage: StageTimes, slots: int) -> bool:
    """Return True if all tasks ran at once, so the longest one set the time."""
    return stage.tasks <= slots and stage.longest > LONG_SHARE * stage.seconds


def _long_task(claim: str, stage: StageTimes, slots: int) -> Diagnosis:
    why = "a key with many records, or several" if stage.shuffled else "a part of its source with many records"
    mend = "pre-aggregate before that key" if stage.shuffled else "divide it into even parts"
    useful = math.ceil(stage.run / stage.longest)
    took, others = format_duration(stage.longest), format_duration(_mean_of_others(stage))
    sentence = (
        f"{claim} because of one long task: it runs {took} and the {counted(stage.tasks - 1, 'other')} {others} on "
        f"average, so it has {why} ({mend})"
    )
    if useful > slots:
        return Diagnosis(Cause.LONG_TASK, sentence=sentence, slots=useful)
    return _no_host_helps(Cause.LONG_TASK, sentence, useful)


def _waiting_tasks(claim: str, cause: Cause, stage: StageTimes, slots: int) -> Diagnosis:
    cpu, took = format_duration(stage.cpu / stage.tasks), format_duration(stage.run / stage.tasks)
    if stage.writes:
        why = f"write from Python for {took}, as to a slow sink or service, or compute there (write in larger parts)"
    else:
        what, mend = "service or disk", "call it less often"
        if cause is Cause.SINK:
            what, mend = "sink, service or disk", "write in larger parts, or to a faster one"
        why = f"wait: they work {cpu} of {took}, as with a slow {what}, or beside other programs on their hosts ({mend})"
    return Diagnosis(cause, not _in_one_wave(stage, slots), f"{claim} because its tasks {why}", stage.tasks)


def more_partitions(*, shuffled: bool, function: bool) -> str:
    """Return the setting that gives a stage more tasks. In a function, Spark joins small shuffle partitions."""
    if not shuffled:
        return "partitions of its source"
    how = "and spark.sql.adaptive.coalescePartitions.enabled=false" if function else "on a new checkpoint"
    return f"spark.sql.shuffle.partitions, {how}"


def _many_tasks(claim: str, stage: StageTimes) -> Diagnosis:
    mean, took = format_duration(stage.run / stage.tasks), format_duration(stage.seconds)
    return _no_host_helps(
        Cause.MANY_TASKS,
        f"{claim} because of many short tasks: {stage.tasks} that run {mean} on average take {took}, mostly to be "
        f"launched (give it fewer: {more_partitions(shuffled=stage.shuffled, function=False)})",
    )


def _waits_for_slots(claim: str, stage: StageTimes) -> Diagnosis:
    mean, took = format_duration(stage.run / stage.tasks), format_duration(stage.seconds)
    sentence = (
        f"{claim} because its tasks wait for slots: they run {mean} on average and their stage takes {took}, as "
        "when other jobs or queries use the slots (give those a scheduler pool of less weight)"
    )
    return Diagnosis(Cause.SLOTS, sentence=sentence)


def _few_tasks(claim: str, stage: StageTimes, slots: int, *, function: bool) -> Diagnosis:
    partitions = more_partitions(shuffled=stage.shuffled, function=function)
    less = ", or call less often what its Python code waits for" if stage.python else ""
    return _no_host_helps(
        Cause.FEW_TASKS,
        f"{claim} because its longest stage has {counted(stage.tasks, 'task')} for {counted(slots, 'slot')}, "
        f"and one runs {format_duration(stage.longest)} (give it more: {partitions}{less})",
        stage.tasks,
    )


def _of_driver(claim: str, cause: Cause, seconds: float, takes: float, *, function: bool) -> Diagnosis:
    share = f"{format_duration(seconds)} of the {format_duration(takes)} of a batch"
    match cause:
        case Cause.SOURCE:
            why = f"asking its source for new records takes {share}: list fewer files, or query the source less often"
        case Cause.PLANNING:
            why = f"planning takes {share}: simplify the plan, or read fewer files a batch"
        case Cause.COMMIT:
            why = f"writing its checkpoint takes {share}: use faster storage for it, or longer batches"
        case _ if function:
            why = (
                f"its foreachBatch function spends {share} in the driver, outside of tasks: let tasks write to the sink or "
                "call the service"
            )
        case _:
            why = f"the driver spends {share} outside of tasks, as for the commit of a slow sink: look at its log"
    return _no_host_helps(cause, f"{claim}, as {why}")


def _no_host_helps(cause: Cause, sentence: str, slots: float = 0.0) -> Diagnosis:
    return Diagnosis(cause, hosts_help=False, sentence=f"{sentence}, more hosts do not help", slots=slots)


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds that at least one span covers."""
    total, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
