"""Policies compared on a load: what is shown, and what is never passed over in silence."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from elastream.core.decision import Unknown
from elastream.core.hosts import Billing, HostType
from elastream.core.metrics import Metric, Rows
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Alternate, Kind, Operator
from elastream.errors import DataflowError, InputError
from elastream.evaluation.compare import compare
from elastream.evaluation.comparison import Comparison, Peak, Trial
from elastream.evaluation.page import render
from elastream.evaluation.prices import read_prices
from elastream.loads import constant, steps, trace
from elastream.policies.btu import Btu
from elastream.policies.elastic_allocator.policy import ElasticAllocator
from elastream.policies.otd import Otd
from elastream.policies.queue_threshold import QueueThreshold
from elastream.policies.static import Static
from elastream.settings import SimulateSettings
from support.simulated_plants import between_ends

HOST = HostType("small", cores=2, memory=4000, price=0.1 / 3600, billing=Billing(1, 60), start=30, stop=5)


def graph(level: float | None = 1.0) -> Graph:
    work = Operator("work", Kind.TRANSFORM, (Alternate("work", cost=0.1),), max_duration=level, cores=1.0, memory=500)
    return between_ends(work, name="case")


def compared(graph, policies, **settings):
    return compare(graph, policies, SimulateSettings(**{"host_types": [HOST], **settings}))


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    policies = {"btu": Btu(), "queue_threshold": QueueThreshold()}
    return compared(graph(), policies, load=steps(5, 30, 5, every="10min"), target=0.5)


def test_every_policy_is_tried_on_all_of_the_load(comparison):
    assert [trial.name for trial in comparison.trials] == ["btu", "queue_threshold"]
    assert comparison.records == 5 * 600 + 30 * 600 + 5 * 600
    for trial in comparison.trials:
        work = trial.result.operators["work"]
        assert work.arrived == pytest.approx(comparison.records, abs=2)
        assert work.arrived == work.done + work.queued + work.in_service


def test_the_outcome_is_json_and_a_page_with_plots(comparison):
    data = json.loads(json.dumps(comparison.outcome().to_json(), allow_nan=False))
    assert data["figures"]["policies"]["btu"]["cost"] == comparison.trials[0].cost
    assert data["environment"]["plant"] == "simulated"
    page = render(comparison.outcome().page)
    for caption in ("Hosts", "Instances of operators", "Records waiting", "In time"):
        (plot,) = re.findall(rf"<figure class=.plot two.><figcaption><div><b>{caption} .simulated.*?</figure>", page, re.S)
        assert {"offered load (right)", "btu", "queue_threshold"} == set(re.findall(r'class="key [^"]*">([^<]*)<', plot))
    assert 'aria-label="The dataflow"' in page


def test_a_recorded_load_shows_its_own_clock(tmp_path):
    file = tmp_path / "load.csv"
    file.write_text("time,count\n" + "".join(f"2024-03-05T22:{n}0:00,600\n" for n in range(6)))
    page = render(compared(graph(), {"btu": Btu()}, load=str(file), target=0.5).outcome().page)
    assert ">5 Mar 22:00<" in page
    assert "2024-03-05 22:30:20 UTC" in page
    assert trace(file, "1s").begins is trace(file).faster(2).begins is None
    assert trace(file).scaled(2).lasting("10min").begins == 1709676000


def with_trials(comparison: Comparison, *made: tuple[str, float, float | None]) -> Comparison:
    result = comparison.trials[0].result
    trials = tuple(Trial(name, cost, kept, result, 0.0, 0) for name, cost, kept in made)
    return Comparison(comparison.graph, comparison.seconds, comparison.records, 0.95, trials)


def test_the_cheapest_that_meets_the_target_wins(comparison):
    found = with_trials(comparison, ("lazy", 1.0, 0.70), ("good", 3.0, 0.97), ("lavish", 9.0, 0.99))
    assert found.winner is found.trials[1]
    assert "lazy costs less (1.00) but MISSES the target: only 70.0% in time" in found.verdict
    assert found.table().rows[0][2] == "70.00% MISSED"
    assert found.table().good == (False, True, None)


def test_there_is_no_winner_where_none_meets_the_target(comparison):
    found = with_trials(comparison, ("lazy", 1.0, 0.70), ("lavish", 9.0, 0.90))
    assert found.winner is None
    assert "No policy meets the target" in found.verdict
    assert not found.outcome().holds


def test_a_tie_names_all_policies_that_cost_the_same(comparison):
    found = with_trials(comparison, ("first", 3.0, 0.97), ("dear", 4.0, 1.0), ("second", 0.1 + 2.9, 0.99))
    assert [trial.name for trial in found.winners] == ["second", "first"]
    assert found.verdict.startswith(
        "second and first cost the same, each the cheapest of those that meet the target: 3.00 (99.0% and 97.0% in time"
    )
    assert found.table().good == (True, None, True)


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [
        (
            0.99,
            "The static peak provision is cheaper than every policy in time: {} hosts of small for all of the load, 2.00",
        ),
        (0.5, "{} hosts of small for all of the load, costs 2.00 but MISSES the target: only 50.0% in time."),
    ],
)
def test_verdict_says_if_a_cheaper_static_fleet_is_in_time(comparison, kept, sentence):
    found = with_trials(comparison, ("good", 3.0, 0.97))
    fleet = Trial("static peak", 2.0, kept, comparison.trials[0].result, 0.0, 0)
    found = replace(found, peak=Peak(2, "small", 2.0, trial=fleet))
    assert sentence.format(found.peak.fleet) in found.verdict
    assert ("good is the cheapest policy that meets the target" in found.verdict) == (kept > 0.95)


def test_static_fleet_that_costs_less_than_any_policy_is_simulated():
    found = compared(graph(), {"static": Static(9)}, load=constant(5, "10min"))
    assert found.static_wins
    assert found.peak.trial.compliance == 1.0
    assert compared(graph(), {"static": Static(found.peak.hosts)}, load=constant(5, "2min")).peak.trial is None


def test_without_a_promise_compliance_is_unknown_and_said_to_be():
    found = compared(graph(level=None), {"queue": QueueThreshold()}, load=constant(1, "2min"))
    assert found.trials[0].compliance is None
    assert "compliance is unknown" in found.verdict


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (
            Btu(),
            "policy btu: it keeps service levels, and operator 'work' has none: give it a max_duration, or the dataflow a",
        ),
        (
            Otd(),
            "policy otd: it places tasks on the hosts that are there and leases none: give it some, such as otd:hosts=4",
        ),
        (Otd(hosts=-4), "policy otd: hosts is -4; it must be a whole number, 0 or more"),
        (ElasticAllocator(), "such as elastic_allocator:hosts=4"),
    ],
)
def test_a_policy_that_could_do_nothing_is_refused_in_one_sentence(policy, sentence):
    with pytest.raises(DataflowError, match=sentence):
        compared(graph(level=None), {"it": policy}, load=constant(1, "2min"))


@pytest.mark.parametrize(
    ("policy", "scaling", "said"),
    [
        (Btu(), NO_RULES, "it remarks: max_hosts: at most 1 host may be leased, and records take "),
        (QueueThreshold(), ScalingRules(budget="0.15/h"), "it remarks: budget: "),
    ],
    ids=["a policy that says nothing", "a rule that refuses"],
)
def test_what_keeps_a_policy_from_leasing_is_said(policy, scaling, said):
    most = 1 if scaling is NO_RULES else 9
    found = compared(
        graph(level=None), {"it": policy}, load=constant(400, "10min"), target_latency=5.0, max_hosts=most, scaling=scaling
    )
    assert said in found.verdict


def test_what_a_policy_lacked_stands_in_table_and_figures(comparison):
    lacked = Unknown(Metric.BACKLOG, Rows.OPERATOR, "work", seconds=45.0, rounds=4)
    first, *others = comparison.trials
    found = replace(comparison, trials=(replace(first, lacked=(lacked,)), *others))
    assert found.table().header[-1] == "remarks"
    assert [row[-1] for row in found.table().rows][:2] == ["cannot size: backlog of 'work' unknown for 45 s", ""]
    assert found.outcome().figures["policies"][first.name]["lacked"] == [str(lacked)]
    assert "remarks" not in comparison.table().header


def test_an_endless_load_needs_a_length():
    with pytest.raises(InputError, match="never ends"):
        compared(graph(), {"btu": Btu()}, load=constant(1))
    assert compared(graph(), {"btu": Btu()}, load=constant(1), limit=120).records == 120


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_price_list_becomes_host_types_priced_by_the_second(tmp_path):
    path = write(tmp_path / "p.csv", "instance_type,usd_per_hour,vcpu,memory_gib\nbig,3.6,4,16\nsmall,0.36,1,2\n")
    small, big = read_prices(path)
    assert (small.name, small.cores, small.price) == ("small", 1, pytest.approx(0.0001))
    assert big.memory == pytest.approx(16 * 2**30 / 1e6)
    assert small.billing == Billing(1.0, 60.0)
    assert [kind.name for kind in read_prices(path, only=["big"])] == ["big"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("instance_type,usd_per_hour\na,1\n", "line 2: how many cores"),
        ("instance_type,vcpu,memory_gib\na,1,1\n", "usd_per_hour"),
        ("instance_type,usd_per_hour,vcpu,memory_gib\na,1,x,1\n", "line 2: .* must be a number"),
        ("instance_type,usd_per_hour,vcpu,memory_gib,speed\na,1,1,1,quick\n", "line 2: .* must be a number"),
        ("instance_type,usd_per_hour,vcpu,memory_gib\na,0,04,2,8\n", "line 2: more fields than names"),
        ('instance_type,usd_per_hour,vcpu,memory_gib\na,"0,04",2,8\n', "line 2: .* must be a number"),
        ("instance_type,usd_per_hour,vcpu,memory_gib\n", "holds no price"),
        ("instance_type,usd_per_hour,vcpu,memory_gib\na,-1,1,1\n", "line 2: usd_per_hour of 'a' is '-1'; it must be"),
    ],
)
def test_a_damaged_price_list_names_file_and_line(tmp_path, text, sentence):
    with pytest.raises(InputError, match=sentence):
        read_prices(write(tmp_path / "p.csv", text))


PRICES = "snapshot_date,region,instance_type,usd_per_hour,vcpu,memory_gib\n"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("2026-01-01,eu,a,1,1,1\n2026-01-01,us,a,2,1,1\n", "line 3: 'a' stands in line 2 as well: name a region"),
        ("12/1/2025,eu,a,1,1,1\n1/1/2026,eu,a,2,1,1\n", "line 2: the date '12/1/2025' is not one such as 2026-03-01"),
    ],
)
def test_a_price_list_that_means_several_prices_is_refused(tmp_path, rows, sentence):
    with pytest.raises(InputError, match=sentence):
        read_prices(write(tmp_path / "p.csv", PRICES + rows))


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="line 1: two columns are called 'vcpu'"):
        read_prices(write(tmp_path / "p.csv", "instance_type,usd_per_hour,vcpu,vcpu,memory_gib\na,1,1,2,1\n"))


def test_the_newest_price_of_a_region_counts(tmp_path):
    rows = "2026-02-01,eu,a,2,1,1\n2026-01-01,eu,a,1,1,1\n2026-03-01,us,a,3,1,1\n"
    (kind,) = read_prices(write(tmp_path / "p.csv", PRICES + rows), region="eu")
    assert kind.price * 3600 == pytest.approx(2)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("mark", [",", ";"])
def test_a_price_list_of_a_spreadsheet_is_read(tmp_path, encoding, mark):
    text = "instance_type, usd_per_hour, vcpu, memory_gib\na, 0.04, 2, 8\n\n".replace(",", mark)
    (tmp_path / "p.csv").write_text(text, encoding=encoding)
    assert [(kind.name, kind.cores) for kind in read_prices(tmp_path / "p.csv")] == [("a", 2)]


def test_a_price_list_says_how_fast_a_core_is(tmp_path):
    text = "instance_type,usd_per_hour,vcpu,memory_gib,speed,ecu\nslow,1,2,4,0.7,\nfast,2,2,4,1.6,2\nby_ecu,3,2,4,,5\n"
    assert [kind.speed for kind in read_prices(write(tmp_path / "p.csv", text))] == [0.7, 1.6, 2.5]


def test_progress_counts_the_policies_that_have_not_begun():
    said = set()
    several = {name: QueueThreshold() for name in ("first", "second", "third", "fourth")}
    settings = SimulateSettings(host_types=[HOST], load=constant(5), limit=600)
    compare(graph(), several, settings, progress=lambda what, *_: said.add(what))
    assert said
    for what in said:
        assert " 0 ms" not in what
        assert what == "done" or " of 10.0 min" in what or what.endswith(" to begin")
