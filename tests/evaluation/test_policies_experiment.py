"""The experiment `policies`: its loads, cells, figures and bars, on grids of a few cells."""

import numpy as np
import pytest

from elastream.core.hosts import HostType, Lease
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import InputError
from elastream.evaluation.compare import scene_of
from elastream.evaluation.policies.cells import (
    OURS,
    Case,
    Cell,
    actions_after,
    dataflow,
    gathered,
    grid,
    lateness,
    most_hosts,
    run_case,
    settings_of,
)
from elastream.evaluation.policies.experiment import cheapest_rival, checks_of, page_of
from elastream.evaluation.policies.loads import (
    FILLED,
    HOUR_S,
    KINDS,
    ONE_BURST,
    ONE_STEP,
    day_of,
    generated,
    recorded_loads,
)

BURST = Cell(ONE_BURST, 3, True, "by the second", 30.0, 60.0, 2.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_one_load_of_moderate_size(kind):
    first, again, other = (generated(kind, seed, 2.0) for seed in (1, 1, 2))
    assert first.pattern == again.pattern
    assert first.pattern != other.pattern
    assert FILLED[0] <= first.fill <= FILLED[1]
    assert first.pattern.seconds == pytest.approx(2 * HOUR_S)


def test_the_burst_is_tenfold_and_begins_after_the_first_hour():
    course = BURST.course
    begin, end = course.jump
    assert begin > HOUR_S
    assert course.pattern.rate(begin) == pytest.approx(10 * course.pattern.rate(begin - 1))
    assert course.pattern.rate(end) == pytest.approx(course.pattern.rate(begin - 1))


def test_a_recorded_load_gives_one_busy_day(tmp_path):
    lines = [f"{minute * 60},{100 + minute % 7 if minute >= 1440 else 1}" for minute in range(3 * 1440)]
    (tmp_path / "requests.csv").write_text("\n".join(["seconds,count", *lines]))
    (place,) = recorded_loads([str(tmp_path)])
    course = day_of(place, seed=0)
    assert course.pattern.seconds == pytest.approx(24 * HOUR_S)
    assert FILLED[0] <= course.fill <= FILLED[1]
    assert min(piece.first for piece in course.pattern.pieces) > 0.9 * course.peak


@pytest.mark.parametrize(("rows", "named"), [(0, "no file of rates"), (30, "two hours")])
def test_a_folder_without_a_long_load_is_refused(tmp_path, rows, named):
    if rows:
        (tmp_path / "short.csv").write_text("\n".join(["seconds,count", *(f"{n * 60},5" for n in range(rows))]))
    with pytest.raises(InputError, match=named):
        recorded_loads([str(tmp_path)])


def test_a_sample_draws_the_same_cells_of_the_grid_again():
    whole, sample = grid(["a.csv"]), grid(["a.csv"], sample=20)
    assert len(whole) == len({*whole}) == (len(KINDS) + 1) * 5 * 2 * 3 * 3 * 2
    assert len({*sample} & {*whole}) == 20
    assert sample == grid(["a.csv"], sample=20)
    assert len({cell.load for cell in sample}) > 3


@pytest.mark.parametrize("chained", [True, False])
def test_every_policy_of_a_cell_can_run_in_it(chained):
    cell = Cell(ONE_STEP, 0, chained, "by the second", 30.0, 60.0, 1.1)
    for arm in cell.arms:
        policy = made(POLICY, *named_in(arm, POLICY), References())
        scene, _ = scene_of(dataflow(cell.course), {arm: policy}, settings_of(cell, cell.course, bound=False))
        scene.set_up(policy)  # raises what the policy lacks


def leased(since: float, until: float | None) -> Lease:
    return Lease("h", HostType("small", 1.0), since, until=until)


def test_leases_of_one_round_count_once():
    ledger = [leased(0, 5000), leased(4800, 6000), leased(4800, 6010), leased(4860, None)]
    assert actions_after(4790, ledger) == {"rounds up": 2, "rounds down": 2}
    assert actions_after(7000, ledger) == {"rounds up": 0, "rounds down": 0}


def test_lateness_counts_from_the_burst_to_its_last_late_record():
    course = BURST.course
    begin, _ = course.jump
    hosts = 2.0 * course.fill
    times = np.arange(0.0, 2 * HOUR_S, 10.0) + begin % 10
    share = np.where((times > begin + 30) & (times <= begin + 150), 0.5, 1.0)
    rows = [times, times * 0, np.full(times.size, hosts), times * 0, times * 0, share, np.ones(times.size)]
    figures = lateness(np.stack(rows, axis=1), course, BURST)
    assert figures["late until, s"] == pytest.approx(150, abs=10)
    # Hosts of twice the burst's rate are ready within 75 s and halve what waits at the rate at which it came.
    assert 60 <= figures["at best, s"] <= 2 * 75


def test_the_limit_of_hosts_is_twice_what_the_peak_fills():
    assert most_hosts(BURST.course) == pytest.approx(2 * BURST.course.peak * 400e-6, abs=1)


def row(load="steps", seed=0, cost=1.0, in_time=0.999, **policies):
    figures = {OURS: {"cost": cost, "in time": in_time, "leases after the first hour": 0}}
    figures |= {name: {"cost": price, "in time": share} for name, (price, share) in policies.items()}
    return {
        "load": load, "seed": seed, "chained": True, "price": "by the second", "target": 30.0, "start": 60.0, "hours": 6.0,
        "fill": 4.0, "constant": {"hosts": 6, "cost": 1.0}, "over bound": 1.2, "policies": figures,
    }  # fmt: skip


def verdicts(rows, *, whole=True):
    return {check.name: check.verdict for check in checks_of(rows, whole=whole)}


IN_TIME, CONSTANT = "in time after the first hour, any load", "cost over the best constant fleet, any load"


def test_one_cell_misses_a_bar_about_any_load():
    rows = [row(), row(seed=1, in_time=0.98)]
    assert verdicts(rows)[IN_TIME] == "missed"
    assert verdicts(rows)[CONSTANT] == "held"
    (check,) = (check for check in checks_of(rows, whole=True) if check.name == IN_TIME)
    assert check.value == 0.98
    assert "1 of 2 cells; worst: steps, seed 1" in check.source


def test_a_sample_without_a_miss_leaves_a_bar_undecided():
    assert verdicts([row()], whole=False)[CONSTANT] == "undecided"


def test_a_load_that_no_moderate_fleet_serves_is_not_judged():
    assert verdicts([row(in_time=0.5) | {"constant": {"hosts": 17, "cost": 1.0}}])[IN_TIME] == "undecided"


def test_a_mean_is_decided_by_the_interval_over_loads():
    name = "cost over the cheapest rival in time, mean"

    def rows(costs):
        return [row(seed=seed, cost=cost, hpa=(1.0, 1.0)) for seed, cost in enumerate(costs)]

    assert verdicts(rows([0.7, 0.72, 0.71]))[name] == "held"
    assert verdicts(rows([0.9, 0.92, 0.91]))[name] == "missed"
    assert verdicts(rows([0.7, 1.0, 0.8]))[name] == "undecided"
    assert verdicts(rows([0.7]))[name] == "undecided"


def test_a_rival_that_misses_the_target_does_not_count():
    assert cheapest_rival(row(hpa=(0.5, 0.98), ds2=(0.9, 0.995), ewma=(0.95, 1.0))) == "ds2"
    assert cheapest_rival(row(hpa=(0.5, 0.98))) is None


@pytest.mark.parametrize("chained", [True, False])
def test_a_cell_is_simulated_beside_its_bound_and_constant_fleet(chained):
    cell = Cell(ONE_STEP, 0, chained, "by the minute", 30.0, 15.0, 1.05)
    results = {Case(cell, arm): run_case(Case(cell, arm)) for arm in (OURS, "threshold")}
    results |= {Case(cell, arm): results[Case(cell, "threshold")] for arm in cell.arms if Case(cell, arm) not in results}
    (figures,) = gathered([cell], results)
    assert 0.0 <= figures["policies"]["threshold"]["in time"] <= 1.0
    assert figures["bound"]["cost"] <= figures["constant"]["cost"]
    checks = checks_of([figures], whole=False)
    tables = {table.caption for table in page_of([figures], checks).tables}
    assert {"By policy", "By load"} < tables
