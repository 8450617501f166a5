"""What is written while a run goes on is what is read afterwards, and a run that died can be read too."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from elastream.control.loop import Loop
from elastream.core.alarm import Alarm
from elastream.core.decision import Decision, Fault
from elastream.core.frames import Frame
from elastream.core.hosts import HostState, HostType, Lease, total_cost
from elastream.core.metrics import Metric
from elastream.core.observation import Context, MicroBatch, Observation
from elastream.core.ring import Ring
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Edge, Kind, Operator
from elastream.dataflow.stages import lay_out
from elastream.errors import EnvironmentProblem, InputError
from elastream.policies.threshold import Threshold
from elastream.recording.observer import Ending, describe_run
from elastream.recording.recorder import Collector, Recorder, Recording
from elastream.report.summary import summarise
from support.example_run import example_events, example_header, example_recording, lacking_decisions
from support.fake_plant import BIG, SMALL, FakePlant


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(run directory, what a collector saw of the same run)."""
    folder = tmp_path_factory.mktemp("run")
    plant = FakePlant(arrival_rate=30.0, time_limit=90.0)

    def load(now):
        plant.arrival_rate = 300.0 if 20 <= now < 50 else 30.0

    plant.clock._on_sleep = load
    collector = Collector()
    header = describe_run(plant.context, policy="threshold", plant="simulated", started=5.0, environment={"cores": 2})
    observers = [Recorder(folder / "recording.jsonl"), collector]
    Loop(plant, Threshold(host_type="small"), observers=observers, header=header, facts=lambda: {"batches": 7}).run()
    return folder, collector.recording


def test_a_file_and_the_memory_of_the_same_run_are_the_same_recording(run):
    folder, collected = run
    for recording in (Recording.read(folder), Recording.read(folder / "recording.jsonl")):
        assert recording.header == collected.header
        assert [d.to_json() for d in recording.decisions] == [d.to_json() for d in collected.decisions]
        assert recording.ending == collected.ending
        assert summarise(recording) == summarise(collected)
        for metric in (Metric.ARRIVAL_RATE, Metric.BACKLOG):
            np.testing.assert_array_equal(recording.operator("source", metric), collected.operator("source", metric))


def test_series_have_a_value_for_each_observation_and_unknown_is_nan(run):
    recording = run[1]
    assert recording.times.tolist() == [float(t) for t in range(len(recording.times))]
    assert recording.operators == ("source", "words", "count", "table", "archive")
    assert recording.operator("source", Metric.ARRIVAL_RATE)[[10, 30]].tolist() == [30.0, 300.0]
    for unknown in (
        recording.operator("words", Metric.BACKLOG),
        recording.operator("nobody", Metric.BACKLOG),
        recording.application(Metric.COMPLIANCE),
        recording.host("h99", Metric.TASKS),
    ):
        assert unknown.shape == recording.times.shape
        assert np.isnan(unknown).all()
    assert np.isnan(recording.host("h2", Metric.TASKS)[0])
    assert recording.host("h2", Metric.TASKS)[40] > 0


def test_hosts_are_leases_with_their_whole_history(run):
    recording = run[1]
    first = recording.hosts[0]
    assert (first.host, first.type, first.since) == ("h1", SMALL, 0.0)
    second = recording.hosts[1]
    assert [state for _, state in second.history][:3] == [HostState.REQUESTED, HostState.STARTING, HostState.RUNNING]
    assert second.ready_at() == second.since + SMALL.start
    assert recording.host_count()[HostState.RUNNING].max() >= 4
    assert recording.cost()[-1] == total_cost(recording.hosts, recording.times[-1])


def test_parallelism_is_that_of_the_composition_where_it_is_not_measured(run):
    parallelism = run[1].parallelism("words")
    assert parallelism[0] == 1
    assert parallelism[45] >= 4


def test_a_run_that_was_killed_while_writing_can_be_read_up_to_there(run, tmp_path):
    lines = (run[0] / "recording.jsonl").read_text().splitlines(keepends=True)
    torn = tmp_path / "recording.jsonl"
    torn.write_text("".join(lines[:60]) + lines[60][:25])
    recording = Recording.read(tmp_path)
    assert recording.ending is None
    assert recording.end == recording.times[-1]
    assert recording.hosts[0].host == "h1"
    summary = summarise(recording)
    assert summary.status == "died"
    assert math.isnan(summary.batches)
    assert summary.cost == recording.cost()[-1]


@pytest.mark.parametrize(
    "damage", ["{", "[]", "{}", '{"kind": "gossip"}', '{"kind": "observation"}', '{"kind": "decision", "round": 1}']
)
def test_a_damaged_line_is_named(run, tmp_path, damage):
    lines = (run[0] / "recording.jsonl").read_text().splitlines()
    (tmp_path / "r.jsonl").write_text("\n".join([*lines[:3], damage, *lines[3:]]) + "\n")
    with pytest.raises(InputError, match=r"r\.jsonl, line 4: not an entry of a recording"):
        Recording.read(tmp_path / "r.jsonl")


def test_what_is_no_recording_is_said_in_a_sentence(tmp_path):
    with pytest.raises(InputError, match=r"there is no recording at .*recording\.jsonl: No such file"):
        Recording.read(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="has no start entry"):
        Recording.read(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n")
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        Recording.read(tmp_path / "binary")


def test_a_full_disk_is_one_sentence_that_names_the_recording():
    plant = FakePlant()
    recorder = Recorder("/dev/full")
    with pytest.raises(EnvironmentProblem, match="the recording /dev/full cannot be written: No space left on device"):
        recorder.started(describe_run(plant.context, policy="p", plant="simulated", started=0.0))


def test_a_summary_counts_what_happened(run):
    recording, summary = run[1], summarise(run[1])
    assert (summary.status, summary.batches, summary.lost) == ("finished", 7.0, 0)
    assert summary.leases == len(recording.hosts) == summary.releases
    assert summary.records == pytest.approx(30 * 60 + 300 * 30, rel=0.02)
    assert summary.cost == total_cost(recording.hosts, summary.seconds)
    assert summary.host_minutes == sum(lease.seconds(summary.seconds) for lease in recording.hosts) / 60
    assert 0 < summary.within_target < 1


def test_tasks_moved_are_those_that_the_plant_counted_where_it_does():
    recording = example_recording()
    counted = replace(recording, ending=replace(recording.ending, facts={"moves": 17}))
    assert summarise(counted).moves == 17


def test_figures_that_the_plant_counted_itself_are_taken_from_its_ending():
    collector = Collector()
    collector.started(describe_run(FakePlant().context, policy="p", plant="spark", started=0.0))
    collector.ended(Ending("finished", 10.0, facts={"records": 41200, "latency_p99": 1.5, "counts checked": "exact"}))
    summary = summarise(collector.recording)
    assert (summary.records, summary.latency_p99) == (41200.0, 1.5)
    assert math.isnan(summary.latency_p50)
    assert math.isnan(summary.within_target)


def test_the_longest_batch_is_that_of_all_queries_and_of_the_whole_run():
    collector = Collector()
    collector.started(example_header())
    *_, observation = (event for event in example_events() if isinstance(event, Observation))
    for batches in ((MicroBatch("a", 1.0, 0.5, 5.0), MicroBatch("b", 1.0, 7.5, 5.0)), (MicroBatch("a", 2.0, 0.1, 5.0),)):
        collector.observed(replace(observation, batches=batches))
    assert summarise(collector.recording).longest_batch == 7.5


def test_the_static_provision_of_the_peak_stands_beside_the_cost():
    recording = example_recording()
    summary, (kind,) = summarise(recording), recording.host_types
    assert summary.static_hosts > summary.peak_hosts, "at a target utilisation of 0.7"
    assert summary.static_cost == summary.static_hosts * kind.billing.units(summary.seconds) * kind.price


def test_a_run_that_died_pays_no_lease_that_had_ended_before():
    whole, died = example_recording(), example_recording(end=False)
    ended = {lease.host: lease for lease in died.hosts if lease.until is not None}
    assert ended
    for lease in whole.hosts:
        if lease.host in ended:
            assert ended[lease.host].state is lease.state
            assert abs(ended[lease.host].until - lease.until) <= 1.0, "as the next observation shows"
    assert summarise(died).releases == len(ended)


def test_a_header_describes_the_dataflow_and_what_can_be_leased():
    header = describe_run(FakePlant().context, policy="p", plant="simulated", started=0.0)
    assert (header.flow, header.target_latency, header.max_hosts) == ("word_count", 2.0, 6)
    assert [stage["operators"] for stage in header.stages] == [["source", "words"], ["count", "table", "archive"]]
    assert header.operators[1]["alternates"] == ["split", "split_fast"]
    assert [kind["name"] for kind in header.host_types] == [SMALL.name, BIG.name]
    assert header.edges[-1] == {
        "source": "count",
        "target": "archive",
        "delivery": "duplicate",
        "durable": None,
        "choice": "where",
        "value": 1.0,
        "port": 0,
    }


def test_micro_batches_are_recorded_with_what_is_unknown_of_them(tmp_path):
    batches = (MicroBatch("source", 1.0, 0.5, 0.0), MicroBatch("source", 2.0, 0.25, 100.0, 1.5, 0.25, 7.0, 3.0))
    *_, observation = (event for event in example_events() if isinstance(event, Observation))
    recorder = Recorder(tmp_path)
    recorder.started(example_header())
    recorder.observed(replace(observation, batches=batches))
    read = Recording.read(tmp_path).batches
    assert math.isnan(read[0].oldest)
    assert (read[1], read[1].end) == (batches[1], 2.25)


def test_alarms_are_recorded_until_they_are_cleared(tmp_path):
    early, late = Alarm("mover", "thread died", 0.5, "Traceback ..."), Alarm("policy", "failed 3 times", 2.0)
    recorder = Recorder(tmp_path)
    recorder.started(example_header())
    seen = [event for event in example_events() if isinstance(event, Observation)]
    for observation, alarms in zip(seen[:4], [(early,), (early, late), (late,), (late,)], strict=True):
        recorder.observed(replace(observation, alarms=alarms))
    assert Recording.read(tmp_path).alarms == ((early, seen[2].time), (late, None))


def test_rings_are_recorded_whenever_one_has_changed(tmp_path):
    first, second = Ring({"h1": 0.0}), Ring({"h1": 0.0, "h2": 1 / 3})
    recorder = Recorder(tmp_path)
    recorder.started(example_header())
    seen = [event for event in example_events() if isinstance(event, Observation)][:5]
    for observation, ring in zip(seen, (None, first, first, second, None), strict=True):
        recorder.observed(replace(observation, rings={} if ring is None else {"count": ring}))
    read = Recording.read(tmp_path)
    changes = [(1, {"count": {"h1": 0.0}}), (3, {"count": {"h1": 0.0, "h2": 1 / 3}}), (4, {})]
    assert [*read.series.rings] == changes


FAULTY = Decision(1, 2.0, "mine", faults=(Fault("policy mine", "failed", "Traceback ..."),))


def test_decisions_are_read_back_with_faults_and_lacking_metrics(tmp_path):
    recorder, collector = Recorder(tmp_path), Collector()
    decisions = (FAULTY, *(replace(each, round=each.round + 1) for each in lacking_decisions()))
    for each in (recorder, collector):
        each.started(example_header())
        for decision in decisions:
            each.decided(decision)
    assert Recording.read(tmp_path).decisions == collector.recording.decisions == decisions


@pytest.mark.parametrize(
    ("key", "read"),
    [
        ("batches", lambda recording: recording.batches),
        ("alarms", lambda recording: recording.alarms),
        ("faults", lambda recording: recording.decisions[0].faults),
    ],
)
def test_a_recording_of_an_earlier_version_lacks_what_came_later(tmp_path, key, read):
    recorder = Recorder(tmp_path)
    recorder.started(example_header())
    recorder.observed(next(event for event in example_events() if isinstance(event, Observation)))
    recorder.decided(FAULTY)
    lines = [json.loads(line) for line in recorder.path.read_text().splitlines()]
    assert any(key in line for line in lines)
    recorder.path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != key}) + "\n" for line in lines))
    assert read(Recording.read(tmp_path)) == ()


def watched(*queries):
    """An observation of a plant that watches queries which come and go."""
    chains = [(Operator(name, Kind.SOURCE), Operator(f"{name}/out", Kind.SINK)) for name in queries]
    operators = tuple(operator for chain in chains for operator in chain)
    graph = Graph("queries", operators, tuple(Edge(a.name, b.name) for a, b in chains))
    return Observation(1.0, Context(lay_out(graph)), Frame(tuple(graph.by_name)))


def test_header_is_written_again_when_there_is_more_to_describe(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.started(describe_run(watched().context, policy="p", plant="spark", started=0.0))
    recorder.observed(watched())
    assert recorder.path.read_text() == ""
    for seen in (watched("first"), watched("first"), watched("second")):
        recorder.observed(seen)
    recorder.ended(Ending("finished", 3.0))
    assert recorder.path.read_text().count('"kind":"start"') == 2
    recording = Recording.read(tmp_path)
    assert recording.operators == ("first", "first/out", "second", "second/out")
    assert len(recording.times) == 3


@pytest.mark.parametrize("queries", [(), ("first",)])
def test_executors_that_cannot_be_leased_are_read_back(tmp_path, queries):
    found = Lease("h1", HostType("executor-1", cores=1), 0.0)
    recorder = Recorder(tmp_path)
    recorder.started(describe_run(watched().context, policy="p", plant="spark", started=0.0))
    recorder.observed(watched(*queries))
    recorder.observed(replace(watched(*queries), time=2.0, leases={"h1": found}))
    recorder.ended(Ending("finished", 3.0, ledger=(found,)))
    assert [lease.type.name for lease in Recording.read(tmp_path).hosts] == ["executor-1"]
