"""What is said of placements measured on Spark; the measurements here are made up."""

import json
from dataclasses import replace

from elastream_papers.placing.on_spark import Moves, PlacementFigures
from elastream_papers.placing.page import allocator_outcome, otd_outcome


def phase(cpu, within=0.0, crossing=0.0):
    sent = ((1.0, 2000.0, 3.0), (4.0, 5.0, 6.0), (7.0, 8.0, 9.0))
    return PlacementFigures(cpu, (0.1, 0.1, 0.1), sent, within, crossing, 1000.0, 0.5, Moves(3, 0, {}), 1.0)


def rounds(even, otd):
    """Three equal rounds in which the extension is as good as can be."""
    best = phase((1.0, 1.0, 1.0), 100, 0)
    return [{"even": even, "OTD": otd, "even after OTD": even, "OTD with relief": best}] * 3


EVEN, BETTER = phase((0.8, 0.4, 0.3), 30, 70), phase((0.7, 0.7, 0.7), 80, 20)


def test_otd_holds_where_less_crosses_and_hosts_that_compute_are_used_more():
    found = otd_outcome({"communication": rounds(EVEN, BETTER), "computation": rounds(EVEN, BETTER)}, ["loopback"], 12.34)
    assert [check.holds for check in found.checks] == [True] * 7
    assert found.figures["seconds"] == 12.3
    assert found.environment["plant"] == "spark"
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["paper"]["communication"]
    astray = replace(BETTER, moves=Moves(2, 1, {}), in_place=0.9)
    worse = otd_outcome({"computation": rounds(astray, EVEN)}, ["loopback"], 1.0)
    assert [check.holds for check in worse.checks] == [False] * 4


def test_even_is_the_mean_of_before_and_after():
    before, after = phase((0.3, 0.3, 0.3), 90, 10), phase((0.5, 0.5, 0.5), 70, 30)
    otd = phase((0.45, 0.45, 0.45), 81, 19)
    each = {"even": before, "OTD": otd, "even after OTD": after, "OTD with relief": after}
    found = otd_outcome({"computation": [each] * 2}, ["loopback"], 1.0)
    assert [check.value for check in found.checks[2:]] == ["0.0100 (in all of 2 runs)", "0.0500 (in all of 2 runs)"]


def test_one_round_decides_no_mean():
    found = otd_outcome({"communication": rounds(EVEN, BETTER)[:1]}, ["loopback"], 1.0)
    assert [check.verdict for check in found.checks] == ["held", "held", "undecided"]


def test_the_papers_figures_stand_in_tables_of_their_own():
    page = otd_outcome({"communication": rounds(EVEN, BETTER)}, ["loopback"], 1.0).page
    captions = [block.caption for block in page.blocks if hasattr(block, "caption")]
    assert captions == [
        "Bars, on Spark figures",
        "communication-intensive, on Spark, means of 3 rounds",
        "communication-intensive, on Spark, first round: kB/s that executors sent each other in shuffles, or kept",
        "communication-intensive in the paper",
    ]
    (sent,) = (block for block in page.blocks if "kB/s" in getattr(block, "caption", ""))
    assert sent.rows[3] == ("OTD: from host 1", "0.0", "2.0", "0.0")
    assert any("loopback" in getattr(block, "text", "") for block in page.blocks)


def test_the_published_allocator_is_held_against_even_and_random():
    each = {
        "even": phase((0.9, 0.3, 0.3)),
        "random": phase((0.8, 0.5, 0.3)),
        "Elastic Allocator": phase((0.5, 0.4, 0.5)),
        "Elastic Allocator with search": phase((0.9, 0.9, 0.9)),
    }
    found = allocator_outcome([each] * 3, ["loopback"], 1.0)
    assert [check.verdict for check in found.checks] == ["held", "missed", "held", "missed", "held", "held"]
    assert not any("between hosts" in row[0] for table in found.page.blocks if hasattr(table, "rows") for row in table.rows)
