"""What stages cost is arithmetic on lines of text; these are what a join of streams and a count behind it once said."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastream.spark.telemetry.stage_load import LoadWindow, StageLoad, read_loads

RECORDED = """\
J\t5\t1795271217824
S\t62\t\t\t0\t2
T\t0\t179\t1\t1\t130\t0\t11544968\t0\t0\t0\t2270
T\t1\t180\t2\t1\t68\t0\t9738457\t0\t0\t0\t2261
S\t64\t62\t0\t0\t2
T\t0\t183\t1\t1\t2590\t10\t89648433\t238\t1381\t1220\t59
T\t1\t184\t2\t1\t2140\t0\t89476481\t236\t1342\t1221\t61
S\t65\t64\t1\t1\t2
T\t0\t192\t1\t1\t982\t200\t39271415\t1\t59\t0\t0
T\t1\t193\t2\t1\t723\t0\t35257752\t1\t61\t0\t0
J\t4\t1795271205824
"""


def lines(text):
    return [line.split("\t") for line in text.splitlines()]


def test_a_stage_is_read_with_its_inputs_and_operators():
    feeding, joining, counting = read_loads(lines(RECORDED))
    assert [(load.stage, load.parents, load.ranks) for load in (feeding, joining, counting)] == [
        (62, (), ()),
        (64, (62,), (0,)),
        (65, (64,), (1,)),
    ]
    assert joining.executor == ("1", "2")
    assert joining.task.tolist() == [183, 184]
    assert joining.cpu.tolist() == pytest.approx([0.089648433, 0.089476481])
    assert joining.run_time.tolist() == pytest.approx([2.59, 2.14])
    assert joining.local_bytes.tolist() == [1381, 1342]
    assert joining.remote_bytes.tolist() == [1220, 1221]
    assert joining.written_bytes.tolist() == [59, 61]


def test_a_task_is_busy_for_its_cpu_time_or_its_time_in_python():
    _, joining, counting = read_loads(lines(RECORDED))
    assert joining.busy.tolist() == joining.cpu.tolist()
    assert counting.busy.tolist() == pytest.approx([0.782, 0.723])


def test_a_failed_attempt_counts_as_cost_and_not_as_a_place():
    failed = "T\t1\t190\t3\t0\t100\t0\t1000000000\t0\t0\t0\t0\n"
    with_failure = RECORDED.replace("S\t65", failed + "S\t65")
    joining = read_loads(lines(with_failure))[1]
    assert joining.executor == ("1", "2")
    assert joining.cpu[1] == pytest.approx(1.089476481)


@pytest.mark.parametrize("cut", ["T\t0\t183", "T\t1\t184"])
def test_a_stage_with_a_task_missing_says_nothing_and_the_others_still_do(cut):
    kept = "\n".join(line for line in RECORDED.splitlines() if not line.startswith(cut))
    assert [load.stage for load in read_loads(lines(kept))] == [62, 65]


AGAIN = """\
J\t5\t1795271218824
S\t72\t\t\t0\t2
S\t74\t72\t0\t0\t2
T\t0\t200\t1\t1\t5\t0\t1000000000\t0\t0\t0\t0
T\t1\t201\t1\t1\t5\t0\t7\t0\t0\t0\t0
"""


def test_two_jobs_of_a_stage_add_up_and_the_last_gives_its_place():
    loads = read_loads(lines(AGAIN + RECORDED))
    assert [load.stage for load in loads] == [62, 65, 74]
    assert loads[2].cpu[0] == pytest.approx(1.089648433)
    assert loads[2].executor == ("1", "1")
    assert loads[0].seconds == pytest.approx(13.0)


def partial(*partitions, tasks):
    """Return a job that ran the joining stage for some partitions only, as `head` and `show` do."""
    rows = "".join(f"T\t{each}\t{300 + each}\t3\t1\t5\t0\t1000000000\t0\t0\t0\t0\n" for each in partitions)
    return f"J\t5\t1795271218824\nS\t82\t72\t0\t0\t{tasks}\n{rows}"


@pytest.mark.parametrize("order", [lambda jobs: jobs, reversed], ids=["after the full run", "before it"])
@pytest.mark.parametrize(("partitions", "tasks"), [((0,), 1), ((1,), 1)], ids=["the first partition", "a later one"])
def test_job_on_some_partitions_adds_to_the_full_run(order, partitions, tasks):
    loads = read_loads(lines("".join(order([partial(*partitions, tasks=tasks), RECORDED.partition("J\t4")[0]]))))
    joining = next(load for load in loads if load.ranks == (0,))
    alone = read_loads(lines(RECORDED))[1]
    assert joining.partitions == 2
    assert (joining.cpu - alone.cpu).tolist() == pytest.approx([float(n in partitions) for n in range(2)])


def test_jobs_on_some_partitions_each_make_a_full_run_together():
    joining = read_loads(lines(partial(1, tasks=1) + partial(0, tasks=1)))[0]
    assert (joining.executor, joining.cpu.tolist()) == (("3", "3"), [1.0, 1.0])


def test_run_wider_than_the_state_says_nothing_and_hides_nothing():
    twice = partial(0, 1, 2, 3, tasks=4)
    joining = next(load for load in read_loads(lines(twice + RECORDED), {0: 2, 1: 2}) if load.ranks == (0,))
    assert (joining.partitions, joining.executor) == (2, ("1", "2"))


def told(batch, cpu="89648433"):
    """The joining stage of a batch, whose first task took `cpu` nanoseconds."""
    text = RECORDED.replace("J\t5", f"J\t{batch}").replace("J\t4", f"J\t{batch - 1}").replace("\t89648433\t", f"\t{cpu}\t")
    return read_loads(lines(text))[1]


def test_a_window_takes_the_median_of_busy_time_and_means_of_the_rest():
    window = LoadWindow(length=3)
    for load in (told(4, "99000000000"), told(5), told(6, "189648433"), told(7, "14000000000")):
        window.add(load)
    loads = window.loads(2, now=1795271220.824)
    assert loads.busy[0] == pytest.approx(0.189648433 / 12)
    assert loads.error[0] > 100 * loads.error[1]
    assert loads.error[1] == 0.0
    assert loads.occupied[0] == pytest.approx(2.59 / 12)
    assert loads.traffic.tolist() == pytest.approx([2601 / 12, 2563 / 12])
    assert loads.records.tolist() == pytest.approx([238 / 12, 236 / 12])
    assert loads.age == pytest.approx(3.0)


def test_a_window_needs_three_batches_of_one_number_of_partitions():
    window = LoadWindow()
    for batch in (5, 6, 7):
        assert np.isnan(window.loads(2, now=0.0).busy).all()
        window.add(told(batch))
    assert np.isnan(window.loads(3, now=0.0).busy).all()
    assert not np.isnan(window.loads(2, now=0.0).busy).any()


def batch_of(number, work, seconds=2.0):
    """A batch whose tasks took `work` core-seconds."""
    work = np.asarray(work, dtype=float)
    nothing = np.zeros(len(work))
    return StageLoad(
        batch=number,
        stage=number,
        parents=(),
        ranks=(0,),
        python=False,
        seconds=seconds,
        ended=seconds * number,
        executor=("1",) * len(work),
        task=np.arange(len(work)),
        run_time=work,
        waited=nothing,
        cpu=work,
        records=nothing,
        local_bytes=nothing,
        remote_bytes=nothing,
        written_bytes=nothing,
    )


def after(*batches):
    window = LoadWindow()
    for number, work in enumerate(batches):
        window.add(batch_of(number, work))
    return window.loads(len(batches[0]), now=2.0 * (len(batches) - 1))


def noisy(parts, batches, seed=1):
    chance = np.random.default_rng(seed)
    return [np.asarray(parts) * chance.normal(1.0, 0.15, len(parts)) for _ in range(batches)]


EVEN, HOT = [1.0] * 16, [2.5] * 4 + [0.5] * 12


def test_of_work_that_moved_to_other_partitions_two_batches_tell():
    busy = after(*noisy(EVEN, 7), *noisy(HOT, 2)).busy
    assert busy[:4].sum() == pytest.approx(5.0, rel=0.2)
    assert busy[4:].sum() == pytest.approx(3.0, rel=0.2)


def test_one_unlike_batch_casts_doubt_until_the_next():
    before, doubtful, again = (after(*noisy(EVEN, 7), *more) for more in ([], noisy(HOT, 1), [*noisy(HOT, 1), EVEN]))
    assert doubtful.busy == pytest.approx(before.busy, rel=0.2)
    assert doubtful.error[:4].sum() > 0.5 * doubtful.busy[:4].sum() > 2 * before.error[:4].sum()
    assert again.busy == pytest.approx(before.busy, rel=0.2)
    assert again.error.sum() < doubtful.error.sum()


@pytest.mark.parametrize(
    "odd",
    [
        [[3.0] * 4 + [1.0] * 12, [1.0] * 12 + [3.0] * 4],  # tasks that have just moved, some in each batch
        [[0.2] * 4 + [0.01] * 12] * 2,  # next to nothing came
        [[2.0] * 16] * 2,  # twice as much of the same
    ],
)
def test_unlike_empty_or_equal_batches_are_no_shift_of_work(odd):
    batches = [*noisy(EVEN, 7), *odd]
    assert after(*batches).busy == pytest.approx(np.median(np.stack(batches[-7:]), axis=0) / 2.0)


SOME_WORK = st.integers(2, 40).flatmap(
    lambda count: st.lists(st.lists(st.floats(0.0, 10.0), min_size=count, max_size=count), min_size=3, max_size=12)
)


@given(SOME_WORK)
def test_loads_lie_within_what_the_last_batches_took(batches):
    loads = after(*batches)
    last = np.stack(batches[-7:]) / 2.0
    assert (loads.busy >= last.min(axis=0) - 1e-9).all()
    assert (loads.busy <= last.max(axis=0) + 1e-9).all()
    assert (loads.error >= 0).all()


@pytest.mark.parametrize("count", [3, 4, 6, 8, 16, 40])
def test_of_batches_that_differ_by_chance_alone_all_of_a_window_tell(count):
    """Chance may look like anything, if seldom: these are two hundred windows, always the same."""
    for seed in range(200):
        batches = noisy([1.0] * count, 12, seed)
        assert after(*batches).busy == pytest.approx(np.median(np.stack(batches[-7:]), axis=0) / 2.0), seed
