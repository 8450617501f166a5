"""The controller of bounded runs: asleep, leasing, running, releasing, failed. Kills at every step lose nothing."""

import tempfile
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastream.errors import EnvironmentProblem
from elastream.freshness.controller import MANY_FAILURES, Controller, FirstRunFailed
from elastream.freshness.planner import HostBounds
from elastream.freshness.wakes import RunReporter, SourceSpec, State, controller_lock, entries_of
from elastream.recording.directory import RunDirectory
from elastream.recording.observer import Ending
from elastream.recording.run_state import StopRequests
from support.fake_bounded_job import TYPE, Job

HOUR = 3600.0
STEPS_OF_A_CYCLE = 9
# The table of `wakes`.
NEXT = {
    State.ASLEEP: {State.LEASING, State.ENDED},
    State.LEASING: {State.RUNNING, State.FAILED, State.ENDED},
    State.RUNNING: {State.RELEASING, State.FAILED, State.ENDED},
    State.RELEASING: {State.ASLEEP, State.FAILED, State.ENDED},
    State.FAILED: {State.LEASING, State.ENDED},
    State.ENDED: {State.LEASING},
}


def job_in(folder: Path, arrivals, **about) -> Job:
    (folder / "control").mkdir(parents=True, exist_ok=True)
    return Job(RunDirectory(folder), arrivals, **about)


def states(job: Job) -> list[str]:
    return [entry["state"] for entry in entries_of(job.directory)]


def assert_exact(job: Job) -> None:
    assert list(chain.from_iterable(job.sink[first] for first in sorted(job.sink))) == list(range(len(job.arrivals)))
    assert not job.leases
    assert states(job)[-1] == State.ASLEEP


def test_records_are_committed_in_time_by_few_runs(tmp_path):
    arrivals = [60.0 * n for n in range(1, 240)]
    job = job_in(tmp_path, arrivals)
    job.play(4.5 * HOUR)
    assert_exact(job)
    ages = [time - arrivals[number] for (time, upto), (_, start) in zip(job.commits, [(0, 0), *job.commits], strict=False)
            for number in range(start, upto)]  # fmt: skip
    assert max(ages) <= job.freshness
    assert job.starts <= 4 * HOUR / (job.freshness - 60) + 2


def test_source_without_new_records_costs_nothing(tmp_path):
    job = job_in(tmp_path, [1.0])
    job.play(2 * HOUR)
    started, spent = job.starts, job.leased_seconds
    job.play(24 * HOUR)
    assert (job.starts, job.leased_seconds) == (started, spent)


def test_states_follow_their_table(tmp_path):
    job = job_in(tmp_path, [10.0 * n for n in range(400)], kills={4: "run", 30: "both", 55: "controller", 90: "run"})
    job.play(3 * HOUR)
    assert_exact(job)
    mine = [State(each) for each in states(job)]
    # A controller that was killed wrote nothing for what happened to its run.
    assert all(b in NEXT[a] or b is State.LEASING for a, b in pairwise(mine))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.floats(0, HOUR), min_size=1, max_size=60).map(sorted),
    st.dictionaries(st.integers(1, 6 * STEPS_OF_A_CYCLE), st.sampled_from(["run", "controller", "both"]), max_size=6),
)
def test_kill_at_any_step_leaves_every_record_once_and_no_lease(arrivals, kills):
    with tempfile.TemporaryDirectory() as folder:
        job = job_in(Path(folder), arrivals, kills=kills)
        job.play(3 * HOUR)
        assert_exact(job)


@pytest.mark.parametrize("who", ["run", "controller", "both"])
@pytest.mark.parametrize("step", range(1, 2 * STEPS_OF_A_CYCLE + 1))
def test_kill_at_each_step_of_a_cycle_is_exact(step, who, tmp_path):
    job = job_in(tmp_path, [5.0, 100.0, 700.0, 1500.0], kills={step: who})
    job.play(2 * HOUR)
    assert not job.kills
    assert_exact(job)


def test_controller_follows_a_run_that_outlived_the_one_before(tmp_path):
    job = job_in(tmp_path, [5.0], kills={2: "controller"})
    job.play(300.0)
    assert_exact(job)
    numbers = [entry["run"] for entry in entries_of(job.directory) if entry["state"] == State.LEASING]
    assert numbers == [1]


def test_first_run_that_fails_by_itself_ends_the_controller(tmp_path):
    job = job_in(tmp_path, [5.0])
    controller = job.controller()
    controller.step()
    job.run.status = 2
    with pytest.raises(FirstRunFailed) as raised:
        controller.step()
    assert raised.value.exit_status == 2


def test_later_failures_are_repeated_ever_more_slowly(tmp_path):
    said = []
    job = job_in(tmp_path, [5.0, 100.0], say=said.append)
    job.play(90.0)
    controller = job.controller()
    starts = []
    for _ in range(4000):
        controller.step()
        if controller.is_awake:
            starts.append(job.now)
            job.run.status = 2
        job.now += 5.0
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert waits == sorted(waits)
    assert abs(waits[-1] - 2 * job.freshness) <= 2 * controller.pause
    assert [f"{MANY_FAILURES} runs in a row failed" in each for each in said].count(True) == 1


def test_run_that_hangs_past_its_deadline_is_told_once(tmp_path):
    said = []
    job = job_in(tmp_path, [5.0, 100.0], say=said.append)
    job.play(90.0)
    controller = job.controller()
    for _ in range(400):
        controller.step()
        job.now += 5.0
    assert controller.is_awake
    assert ["has not ended" in each for each in said].count(True) == 1


def test_stop_ends_a_sleeping_controller_at_once_and_an_awake_one_with_its_run(tmp_path):
    job = job_in(tmp_path, [5.0])
    controller = job.controller()
    controller.step()
    controller.stop()
    controller.step()
    assert not controller.done
    controller.step()
    assert controller.done
    assert states(job)[-1] == State.ENDED


def test_stop_by_another_process_ends_one_controller_and_not_the_next(tmp_path):
    job = job_in(tmp_path, [5.0])
    job.play(90.0)
    job.directory.lock.touch()
    job.directory.request_stop()
    controller = job.controller()
    controller.step()
    assert controller.done
    assert states(job)[-1] == State.ENDED
    following = job.controller()
    following.step()
    assert not following.done


def test_lease_that_an_ended_run_left_starts_a_run_that_takes_it_over(tmp_path):
    job = job_in(tmp_path, [5.0])
    job.play(90.0)
    job.leases.add("h9")
    job.play(300.0)
    assert_exact(job)
    assert job.starts == 2


def test_second_controller_of_a_folder_is_refused(tmp_path):
    directory = job_in(tmp_path, []).directory
    with (
        controller_lock(directory),
        pytest.raises(EnvironmentProblem, match="has a controller"),
        controller_lock(directory),
    ):
        pass


def test_stop_request_stays_for_the_controller_when_a_run_ends(tmp_path):
    job = job_in(tmp_path, [])
    job.directory.lock.touch()
    job.directory.stop_request.touch()
    with controller_lock(job.directory):
        StopRequests(job.directory).ended(Ending("stopped", 0.0))
        assert job.directory.stop_requested
    StopRequests(job.directory).ended(Ending("stopped", 0.0))
    assert not job.directory.stop_requested


def test_job_sleeps_beside_a_file_that_its_runs_do_not_read(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "old").write_text("1")
    spec, said = SourceSpec("files", str(tmp_path / "in"), str(tmp_path / "cp")), []
    job = job_in(tmp_path, [])
    controller = Controller(
        job.directory, job.freshness, HostBounds(TYPE), job.launch, clock=lambda: job.now, remains=job, say=said.append
    )
    for _ in range(500):
        controller.step()
        if job.run is not None and job.run.status is None:
            RunReporter(job.directory, job.run.order, lambda: job.now).caught_up(job.now, {spec.name: 0}, {}, [spec])
            job.run.status = 0
        job.now += controller.pause
    assert job.starts == 2
    assert ["run 2 passed over 1 file" in each for each in said].count(True) == 1


def test_job_runs_now_and_then_while_its_sources_cannot_be_looked_at(tmp_path):
    job = job_in(tmp_path, [1.0])
    job.play(0.5 * HOUR)
    started = job.starts

    def look():
        raise OSError("no broker answers")

    job.look = look
    job.play(2.5 * HOUR)
    assert HOUR / job.freshness < job.starts - started <= 4 * HOUR / job.freshness
