"""Causes of late queries, from figures like those that Spark has reported of queries with a planted cause."""

from dataclasses import replace

import pytest

from elastream.core.lateness import BatchTimes, Cause, Diagnosis, QueryTraits, StageTimes, diagnose, unjudged

PARTS = {"latestOffset": 0.02, "getBatch": 0.01, "queryPlanning": 0.05, "walCommit": 0.06, "commitOffsets": 0.06}


def stage(seconds, *tasks, at=0.1, cpu=0.9, **more):
    """Return a stage that begins at second `at` of its batch; tasks: seconds of each."""
    return StageTimes(at, at + seconds, len(tasks), sum(tasks), max(tasks), cpu * sum(tasks), **more)


# Fixed costs of a small batch on a busy machine.
FIXED = {"latestOffset": 0.3, "queryPlanning": 0.2, "walCommit": 0.4, "commitOffsets": 0.3}
SMALL = stage(0.2, 0.1, 0.1, shuffled=True)
ACTIONS = [stage(1.4, 1.3, at=1.5 * number) for number in range(3)]
FULL = [stage(1.0, *[0.9] * 4, 0.05, at=1.1 * number) for number in range(3)]
WAITING = stage(1.2, *[1.1] * 4, cpu=0.05, at=3.4)


def batches(seconds, *stages, count=4, others=(), **parts):
    """Return batches one after the other; parts: seconds that differ from those of a quick one."""
    rest = sum({**PARTS, **parts}.values())
    durations = {**PARTS, "addBatch": max(0.0, seconds - rest), **parts}
    stages_of = [
        [replace(s, begun=n * seconds + s.begun, ended=n * seconds + s.ended) for s in stages] for n in range(count)
    ]
    spans = [(n * seconds + begin, n * seconds + end) for n in range(count) for begin, end in others]
    return [BatchTimes(n * seconds, seconds, durations, stages_of[n], spans) for n in range(count)]


def cause(*batches, target=2.0, **traits):
    diagnosis = diagnose("q", *batches, target, QueryTraits(**{"slots": 4, **traits}))
    return diagnosis.cause, diagnosis.hosts_help


@pytest.mark.parametrize(
    ("planted", "traits", "found"),
    [
        (batches(1.0, SMALL), {"trigger": 20.0, "target": 5.0}, Cause.TRIGGER),
        (batches(0.9, SMALL), {"trigger": 1.5, "target": 2.0}, Cause.TRIGGER),
        (batches(5.0, SMALL), {"function": True, "trigger": 1.0}, Cause.DRIVER),
        (batches(5.0, stage(4.5, 4.4, 4.4, 4.3, 4.4, cpu=0.05)), {}, Cause.SINK),
        (batches(5.0, SMALL), {}, Cause.DRIVER),
        (batches(5.0, SMALL, addBatch=0.4, queryPlanning=4.0), {}, Cause.PLANNING),
        (batches(5.0, SMALL, addBatch=0.4, latestOffset=4.0), {}, Cause.SOURCE),
        (batches(5.0, SMALL, addBatch=0.4, walCommit=2.0, commitOffsets=2.0), {}, Cause.COMMIT),
        (batches(5.0, stage(4.4, 0.4, 4.3, 0.5, 0.4, shuffled=True)), {}, Cause.LONG_TASK),
        (batches(5.0, stage(4.4, 4.3)), {}, Cause.FEW_TASKS),
        (batches(0.6, SMALL), {"limited": "1 file", "trigger": 1.0}, Cause.LIMIT),
        (batches(1.6, SMALL, **FIXED), {"limited": "1 file", "trigger": 1.0}, Cause.LIMIT),
        (batches(5.0, stage(4.5, *[1.1] * 16)), {"trigger": 1.0}, Cause.HOSTS),
        (batches(5.0, stage(4.5, *[1.1] * 16, cpu=0.14)), {}, Cause.HOSTS),
        (batches(5.0, stage(4.5, *[1.1] * 16)), {"limited": "9,000 rows", "trigger": 1.0}, Cause.HOSTS),
        (batches(5.0, SMALL), {"function": True, "limited": "9,000 rows"}, Cause.DRIVER),
        (batches(5.0, *ACTIONS), {"function": True}, Cause.FEW_TASKS),
        (batches(5.0, *FULL, WAITING), {}, Cause.HOSTS),
        (batches(5.0, stage(4.5, 0.1, 0.1, cpu=0.1, shuffled=True)), {}, Cause.SLOTS),
        (batches(5.0, stage(4.5, *[0.01] * 100, shuffled=True)), {}, Cause.MANY_TASKS),
        (batches(5.0, stage(4.4, 4.3)), {"limited": "9,000 rows"}, Cause.FEW_TASKS),
    ],
    ids=[
        "a trigger beyond the target",
        "a trigger of two thirds",
        "a slow function",
        "a slow sink in tasks",
        "a slow commit of a sink",
        "planning",
        "a source that is slow to ask",
        "a slow checkpoint",
        "one hot key",
        "one partition",
        "a limit below a trigger",
        "a limit without a pause",
        "too few hosts",
        "too few hosts that others load",
        "too few hosts and a limit",
        "a slow function and a limit",
        "one partition and several actions",
        "too few hosts and one stage that waits longer",
        "slots that a batch job fills",
        "many short tasks",
        "one partition and a limit",
    ],
)
def test_planted_cause_is_named(planted, traits, found):
    assert cause(planted, **traits) == (found, found in (Cause.HOSTS, Cause.SLOTS))


def test_sentence_of_a_trigger_has_a_setting_that_helps():
    said = diagnose("q", batches(1.0, SMALL), 5.0, QueryTraits(trigger=20.0)).sentence
    assert said.startswith("q is late because of its trigger: batches start every 20.0 s and take 1.0 s")
    assert "set a trigger of at most 3.6 s, or a target of 22.1 s" in said
    assert said.endswith("more hosts do not help")


def test_slots_that_shorten_a_batch_are_worth_keeping():
    few = diagnose("q", batches(5.0, stage(4.4, 4.3, 4.3)), 2.0, QueryTraits(slots=8))
    hot = diagnose("q", batches(5.0, stage(4.4, 4.3, 1.2, 1.1, 1.0)), 2.0, QueryTraits(slots=8))
    driver = diagnose("q", batches(5.0, SMALL), 2.0, QueryTraits(slots=8))
    assert [each.slots for each in (few, hot, driver)] == [2, 2, 0]


def test_long_task_among_more_work_than_the_slots_hold_needs_hosts_too():
    tasks = [2.0, *[0.45] * 12]
    assert cause(batches(4.2, stage(3.9, *tasks)), slots=2) == (Cause.LONG_TASK, True)


@pytest.mark.parametrize(
    "read",
    [
        batches(5.0, SMALL, count=2),
        batches(5.0),
        batches(5.0, SMALL, others=[(1.0, 4.5)]),
        batches(0.8, stage(0.7, 0.3, 0.3, 0.3, 0.3)),
        batches(5.0, ACTIONS[0], WAITING, FULL[0]),
    ],
    ids=[
        "too few batches",
        "stages that are unknown",
        "jobs that may be the function's own",
        "late only after a slow start",
        "several causes alike",
    ],
)
def test_no_cause_is_named_without_evidence(read):
    assert diagnose("q", read, 2.0, QueryTraits(function=True, slots=4)) == Diagnosis()


@pytest.mark.parametrize(("tasks", "found"), [(16, Cause.HOSTS), (1, Cause.FEW_TASKS)])
def test_python_tasks_may_work_or_wait(tasks, found):
    of_python = stage(4.5, *[17.6 / max(4, tasks)] * tasks, cpu=0.05, python=True)
    diagnosis = diagnose("q", batches(5.0, of_python), 2.0, QueryTraits(slots=4))
    assert (diagnosis.cause, "its Python code waits for" in diagnosis.sentence) == (found, True)


def test_stages_that_run_at_once_share_the_slots():
    join = [StageTimes(begun, begun + 6.0, 8, 24.0, 3.0) for begun in (0.0, 0.0)]
    batches = [BatchTimes(0.0, 6.5, {"addBatch": 6.2}, join)] * 5
    assert diagnose("q", batches, 2.0, QueryTraits(slots=8)).cause is Cause.HOSTS


def test_sentences_keep_to_one_clause_of_a_note():
    diagnoses = [unjudged("q", "1 file")]
    for read, traits in [(batches(5.0, SMALL), {}), (batches(5.0, SMALL), {"function": True})]:
        diagnoses.append(diagnose("q", read, 2.0, QueryTraits(**traits)))
    assert not [each.sentence for each in diagnoses if ";" in each.sentence]
