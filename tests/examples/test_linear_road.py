"""The Linear Road example: operators give what plain loops over all lines give, whatever the batches and alternates."""

import tempfile
from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import linear_road
import numpy as np
import pandas as pd
import pytest
from congestion import History, expected_speed
from disturbed import Once, half_of_its_cores
from linear_road import (
    ACCOUNT,
    ESTIMATED,
    NOTICE,
    PARSED,
    TRAVELLED,
    Plan,
    account,
    assess,
    balance,
    columns,
    detect,
    estimate,
    parse,
    travel,
    weather,
)
from road_check import differences, expect, identity
from traffic import BALANCE, MILE, PERIOD, REPORT, TRAVEL, Road, parsed, send

from elastream.api.run import commanded
from elastream.core.action import LeaseHost, SwitchAlternate
from elastream.loads import constant
from elastream.recording.recorder import Recording
from elastream_papers.thesis.reactive.linear_road import CONGESTION, EDGES, OPERATORS, TRAVEL_TIMES

HISTORY = History.of()


def of_type(lines, *types):
    return [item for item in map(parsed, lines) if item["type"] in types]


# -- the traffic -------------------------------------------------------------------------------------------------------


# -- the models --------------------------------------------------------------------------------------------------------


def test_neighbours_locate_a_jam_and_the_trend_only_detects_it():
    jam = 47 * MILE
    places = range(240_000, 256_000, 600)
    past = np.array([(time, pos, 15 if pos > jam else 60, 100) for time in range(60) for pos in places]).T
    before, behind = (expected_speed("neighbours", past, 60, jam + miles * MILE, 100) for miles in (-1, 1))
    assert before > 50
    assert behind < 25
    assert 25 < expected_speed("trend", past, 60, jam - MILE, 100) < 50


# -- the operators -----------------------------------------------------------------------------------------------------


def batches_of(random, rows):
    """`rows` divided into batches, some of them empty."""
    cuts = np.sort(random.integers(0, len(rows) + 1, max(1, len(rows) // 40)))
    return [rows[a:b] for a, b in pairwise([0, *cuts.tolist(), len(rows)])]


def merged(random, *streams):
    """Batches of several edges as one query takes them: each in its order, none waiting for another."""
    turns = np.repeat(np.arange(len(streams)), [len(each) for each in streams])
    random.shuffle(turns)
    iterators = [iter(each) for each in streams]
    return [next(iterators[turn]) for turn in turns]


class Keyed:
    """A keyed operator, called for each key of a batch as Spark calls it: rows in any order."""

    def __init__(self, function, schema, *key):
        self.function, self.schema, self.key, self.states = function, columns(schema), list(key), {}

    def __call__(self, random, rows):
        frame, found = pd.DataFrame(rows, columns=self.schema), []
        for key, part in frame.groupby(self.key):
            rows, self.states[key] = self.function(key, part.iloc[random.permutation(len(part))], self.states.get(key))
            found += rows.to_dict("records")
        return found


def through(lines, seed):
    """What operators make of `lines`, in batches and under alternates drawn at random: rows, and which alternate spoke."""
    random = np.random.default_rng(seed)
    stations, reports = ([item for line in lines for item in each(line)] for each in (weather, parse))
    state = Keyed(None, PARSED, "xway", "dir")
    estimated, emitted = {}, []
    for batch in merged(random, batches_of(random, stations), batches_of(random, reports)):
        method = str(random.choice(list(CONGESTION)))
        state.function = lambda key, rows, kept, method=method: estimate(method, key, rows, kept)
        emitted += state(random, batch)
    for row in emitted:
        estimated[row["kind"], row["vid"], row["time"]] = row["method"]
    detected = Keyed(detect, PARSED, "xway", "dir")
    told = [row for batch in batches_of(random, reports) for row in detected(random, batch)]
    books = Keyed(account, ESTIMATED, "book")
    both = merged(random, batches_of(random, emitted), batches_of(random, told))
    accounted = [row for batch in both for row in books(random, batch)]
    travelled, answers = {}, []
    for row in (*emitted, *told):
        by = str(random.choice(list(TRAVEL_TIMES)))
        answers += (found := travel(by, HISTORY, row))
        travelled |= {(each["kind"], each["vid"], each["time"]): by for each in found}
    notices = [each for row in accounted for each in assess(row)]
    accounts = [each for row in accounted for each in balance(row)]
    return {"notices": notices, "accounts": accounts, "answers": answers}, estimated, travelled


SCHEMAS = {"notices": NOTICE, "accounts": ACCOUNT, "answers": TRAVELLED}


def tuples(rows, schema):
    return Counter(tuple(row[column] for column in columns(schema)) for row in rows)


def test_rows_equal_those_of_plain_loops_for_any_batches():
    lines = send([4] * 330, Road(expressways=1, first=50, last=53, queries=0.1, accident_every=90), 1)
    rows, estimated, travelled = through(lines, 1)
    expected = expect(lines, HISTORY, estimated, travelled)
    for name, came in rows.items():
        assert differences(name, tuples(came, SCHEMAS[name]), getattr(expected, name)) == []
    assert any(row["accident"] >= 0 for row in rows["notices"])
    # `sparse` leaves out every second report of a vehicle, and no query.
    missing = [key for item in of_type(lines, REPORT) if (key := identity(item)) not in estimated]
    assert missing
    assert all(key[2] // PERIOD % 2 for key in missing)
    assert all(identity(item) in estimated for item in of_type(lines, BALANCE, TRAVEL))


def test_a_lost_a_doubled_and_a_changed_row_are_differences():
    expected = Counter({(1,): 1, (2,): 2})
    assert differences("rows", Counter({(1,): 1, (2,): 2}), expected) == []
    assert differences("rows", Counter({(1,): 2, (2,): 1, (3,): 1}), expected) == [
        "rows: (1,) came 2 times, expected 1 times",
        "rows: (2,) came 1 times, expected 2 times",
        "rows: (3,) came 1 times, expected 0 times",
    ]


# -- the dataflow ------------------------------------------------------------------------------------------------------


def test_the_example_and_the_simulated_model_are_one_dataflow(tmp_path):
    graph = linear_road.dataflow(Plan(constant(60, 10)), tmp_path).graph
    ours = {(edge.source, edge.target) for edge in graph.edges if edge.source != "lines"}
    assert ours == {edge for edge in EDGES if edge[0] not in ("updates", "positions")}
    assert {name for name, operator in graph.by_name.items() if operator.alternates} == set(OPERATORS)
    for operator, known in (("congestion", CONGESTION), ("travel_times", TRAVEL_TIMES)):
        assert [(each.name, each.value, each.selectivity) for each in graph.by_name[operator].alternates] == [
            (name, value, selectivity) for name, (value, _, selectivity) in known.items()
        ]


def test_a_neighbour_takes_half_of_a_host_once_after_some_seconds():
    taken = []
    cloud = SimpleNamespace(hosts=[SimpleNamespace(cluster=SimpleNamespace(confine=lambda *given: taken.append(given)))])
    neighbour = Once(cloud, 40.0, half_of_its_cores)
    for time in (150.0, 189.0, 190.0, 191.0):
        leases = {"h1": SimpleNamespace(host="h1", type=linear_road.HOST)}
        neighbour.observed(SimpleNamespace(time=time, usable=("h1",), leases=leases))
    assert taken == [("h1", linear_road.HOST.cores / 2)]
    assert (neighbour.host, neighbour.since) == ("h1", 190.0)


def test_a_plan_sends_as_many_lines_as_are_due():
    plan = Plan.of(60.0, (3, 12, 3))
    assert len(plan.lines) == plan.load.count(plan.load.seconds) == 60 * (3 + 48 + 3)


@pytest.mark.spark
@pytest.mark.slow
def test_on_hosts_under_ce_every_row_is_right_and_no_query_starts_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with commanded(runs=tmp_path / "runs"):
        linear_road.main(100.0, (20, 40, 10))
    said = capsys.readouterr().out
    assert "are those of plain loops over the same lines" in said
    (folder,) = (tmp_path / "runs").iterdir()
    recording = Recording.read(folder)
    assert recording.ending is not None
    assert recording.ending.facts["query runs"] == 5
    # A first sign of what is measured by benchmarks/linear_road_on_spark.py: hosts are leased or alternates are switched.
    done = [outcome.action for decision in recording.decisions for outcome in decision.outcomes if outcome.succeeded]
    assert any(isinstance(action, SwitchAlternate | LeaseHost) for action in done)
