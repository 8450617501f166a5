"""What is said of placements measured on Spark; the measurements here are made up."""

import json

from elastream.experiments.placing_spark import Phase
from elastream.experiments.placing_spark_page import allocator_outcome, otd_outcome


def phase(name, cpu, within=0.0, crossing=0.0):
    return Phase(name, cpu, (0.1, 0.1, 0.1), within, crossing, 1000.0, 0.5, 3)


def phases(even, otd):
    return {"random": phase("random", (0.5, 0.5, 0.5), 1, 1), "even": even, "OTD, from even": otd}


def test_otd_holds_where_less_crosses_and_hosts_that_compute_are_used_more():
    even, better = phase("even", (0.8, 0.4, 0.3), 30, 70), phase("OTD", (0.7, 0.7, 0.7), 80, 20)
    found = otd_outcome({"communication": phases(even, better), "computation": phases(even, better)}, ["loopback"], 12.34)
    assert [check.holds for check in found.checks] == [True] * 3
    assert found.figures["seconds"] == 12.3
    assert found.environment["plant"] == "spark"
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["paper"]["communication"]
    worse = otd_outcome({"computation": phases(better, even)}, ["loopback"], 1.0)
    assert [check.holds for check in worse.checks] == [False, False]


def test_the_papers_figures_stand_in_tables_of_their_own():
    even, better = phase("even", (0.8, 0.4, 0.3), 30, 70), phase("OTD", (0.7, 0.7, 0.7), 80, 20)
    page = otd_outcome({"communication": phases(even, better)}, ["loopback"], 1.0).page
    captions = [block.caption for block in page.blocks if hasattr(block, "caption")]
    assert captions == [
        "Bars, on Spark figures",
        "communication-intensive, on Spark",
        "communication-intensive in the paper",
    ]
    assert any("loopback" in getattr(block, "text", "") for block in page.blocks)


def test_the_allocator_is_held_against_even_and_the_mean_of_random():
    found = allocator_outcome(
        {
            "even": phase("even", (0.9, 0.3, 0.3)),
            "random, seed 1": phase("random, seed 1", (0.9, 0.5, 0.1)),
            "random, seed 2": phase("random, seed 2", (0.6, 0.6, 0.6)),
            "Elastic Allocator": phase("Elastic Allocator", (0.6, 0.6, 0.5)),
        },
        ["loopback"],
        1.0,
    )
    held = {check.name: check.holds for check in found.checks}
    assert held["CPU of hosts (deviation) of the allocator against even"]
    assert held["CPU of hosts (deviation) of the allocator against random (mean)"]
    assert not any("between hosts" in row[0] for table in found.page.blocks if hasattr(table, "rows") for row in table.rows)
