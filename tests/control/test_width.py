"""Too few state partitions are noticed after a day, by records that stay late while partitions are full."""

from dataclasses import replace

import pytest

from elastream.control.width import DAY_S, EPISODE_S, WIDTH_ALARM, WidthAdvice, WidthHistory
from elastream.core.alarm import Alarms
from elastream.core.frames import Frame
from elastream.core.metrics import Metric
from elastream.policies.common.reach import width_binds
from support.states import BIG, observed

HOUR_S = 3600.0
FEW = "q/count has 4 state partitions"


def late(at=(0, 1, 2, 3), *, busy=3.0, latency=20.0, waiting=100.0, time=0.0, tasks=None):
    """A round with a partition a host, of which each has one slot a core."""
    seen = observed(list(at), time=time)
    names = seen.operators.ids
    columns = {Metric.BUSY_CORES: [0.0, busy, 0.0], Metric.BACKLOG: [waiting, 0.0, 0.0]}
    if tasks is not None:
        seen = replace(seen, tasks=type(seen.tasks)(*_rows(seen), names, {Metric.BUSY_CORES: tasks}))
    return replace(
        seen,
        context=replace(seen.context, target_latency=10.0, max_hosts=16),
        operators=Frame(names, columns),
        application=Frame(["queries"], {Metric.LATENCY_P99: [latency]}),
    )


def _rows(seen):
    return seen.tasks.operator.tolist(), seen.tasks.index.tolist(), seen.tasks.host.tolist()


def after(*episodes, until):
    """The history after a day of rounds, ten minutes apart, that are bound in these hours."""
    history = WidthHistory()
    for round_ in range(int(until / EPISODE_S) + 1):
        hour = round_ * EPISODE_S / HOUR_S
        history.add(round_ * EPISODE_S, FEW if any(begin <= hour <= end for begin, end in episodes) else "")
    return history


def test_full_partitions_bind_late_records():
    assert BIG.slots == 2
    assert "q/count has 4 state partitions" in width_binds(late())


@pytest.mark.parametrize(
    "change", [{"latency": 5.0}, {"waiting": 0.0}, {"busy": 1.0}, {"at": (0, 0, 0, 0)}, {"tasks": [3.0, 0.1, 0.1, 0.1]}]
)
def test_width_is_not_the_cause(change):
    assert width_binds(late(**change)) == ""


@pytest.mark.parametrize(
    ("episodes", "days"),
    [([(0, 24)], 1), ([(9, 10), (33, 34)], 1.5), ([(9, 10), (30, 31), (50, 51)], 2.25)],
    ids=["all day", "daily peaks", "peaks with gaps below a day"],
)
def test_a_day_of_late_records_shows_too_few_partitions(episodes, days):
    assert after(*episodes, until=days * DAY_S).too_small


@pytest.mark.parametrize(
    ("episodes", "days"),
    [([(0, 23)], 1), ([(9, 10)], 3), ([(9, 10), (35, 36)], 1.6), ([(0, 24)], 2.1)],
    ids=["below a day", "one peak", "a gap above a day", "over for a day"],
)
def test_less_shows_nothing(episodes, days):
    assert not after(*episodes, until=days * DAY_S).too_small


def test_bursts_do_not_count():
    history = WidthHistory()
    for minute in range(2 * 24 * 60):
        history.add(60.0 * minute, FEW if minute % 9 else "")
    assert not history.too_small


def test_alarm_lasts_until_the_width_changes():
    alarms, advice = Alarms(lambda: 0.0), WidthAdvice("help")
    for time in range(0, int(DAY_S) + 601, 600):
        advice.observed(late(time=float(time)), alarms)
    (alarm,) = alarms.active
    assert (alarm.source, alarm.said.endswith("(state_partitions); help")) == (WIDTH_ALARM, True)
    advice.observed(late((0, 1, 2, 3, 0), time=DAY_S + 1200.0), alarms)
    assert alarms.active == ()
