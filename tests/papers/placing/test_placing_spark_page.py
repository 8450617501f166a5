"""What is said of placements measured on Spark; the measurements here are made up."""

import json
from dataclasses import replace

from elastream_papers.placing.on_spark import Moves, PlacementFigures
from elastream_papers.placing.page import allocator_outcome, otd_outcome


def phase(cpu, within=0.0, crossing=0.0):
    sent = ((1.0, 2000.0, 3.0), (4.0, 5.0, 6.0), (7.0, 8.0, 9.0))
    return PlacementFigures(cpu, (0.1, 0.1, 0.1), sent, within, crossing, 1000.0, 0.5, Moves(3, 0))


def phases(even, otd):
    return {"even": even, "OTD, from even": otd, "even again": even}


def test_otd_holds_where_less_crosses_and_hosts_that_compute_are_used_more():
    even, better = phase((0.8, 0.4, 0.3), 30, 70), phase((0.7, 0.7, 0.7), 80, 20)
    found = otd_outcome({"communication": phases(even, better), "computation": phases(even, better)}, ["loopback"], 12.34)
    assert [check.holds for check in found.checks] == [True] * 5
    assert found.figures["seconds"] == 12.3
    assert found.environment["plant"] == "spark"
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["paper"]["communication"]
    refused = replace(better, moves=Moves(2, 1))
    worse = otd_outcome({"computation": phases(refused, even)}, ["loopback"], 1.0)
    assert [check.holds for check in worse.checks] == [False, False, False]


def test_even_is_the_mean_of_before_and_after():
    before, after = phase((0.3, 0.3, 0.3), 90, 10), phase((0.5, 0.5, 0.5), 70, 30)
    otd = phase((0.45, 0.45, 0.45), 81, 19)
    found = otd_outcome({"computation": {"even": before, "OTD, from even": otd, "even again": after}}, ["loopback"], 1.0)
    assert [check.bound for check in found.checks] == ["0", "below even's 20.0%", "above even's 40.0%"]
    assert found.holds


def test_the_papers_figures_stand_in_tables_of_their_own():
    even, better = phase((0.8, 0.4, 0.3), 30, 70), phase((0.7, 0.7, 0.7), 80, 20)
    page = otd_outcome({"communication": phases(even, better)}, ["loopback"], 1.0).page
    captions = [block.caption for block in page.blocks if hasattr(block, "caption")]
    assert captions == [
        "Bars, on Spark figures",
        "communication-intensive, on Spark",
        "communication-intensive, on Spark: kB/s that executors sent each other in shuffles, or kept",
        "communication-intensive in the paper",
    ]
    (sent,) = (block for block in page.blocks if "kB/s" in getattr(block, "caption", ""))
    assert sent.rows[3] == ("OTD, from even: from host 1", "0.0", "2.0", "0.0")
    assert any("loopback" in getattr(block, "text", "") for block in page.blocks)


def test_the_allocator_is_held_against_even_and_the_mean_of_random():
    found = allocator_outcome(
        {
            "even": phase((0.9, 0.3, 0.3)),
            "random, seed 1": phase((0.9, 0.5, 0.1)),
            "random, seed 2": phase((0.6, 0.6, 0.6)),
            "Elastic Allocator": phase((0.6, 0.6, 0.5)),
        },
        ["loopback"],
        1.0,
    )
    held = {check.name: check.holds for check in found.checks}
    assert held["CPU of hosts (deviation) of the allocator against even"]
    assert held["CPU of hosts (deviation) of the allocator against random"]
    assert not any("between hosts" in row[0] for table in found.page.blocks if hasattr(table, "rows") for row in table.rows)
