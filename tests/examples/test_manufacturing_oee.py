"""Eq. (2) to (5) as they stand in the manufacturing example, and the report that is made of them."""

import re
import zlib

import oee
import pytest


@pytest.mark.parametrize(
    ("produced", "ideal", "cycle", "expected"),
    [
        (20, 0.5, 10, 1.0),
        (15, 0.5, 10, 0.75),
        (0, 0.5, 10, 0.0),
        (25, 0.5, 10, 1.25),
        (None, 0.5, 10, None),
        (1, 0.5, 0, None),
    ],
)
def test_performance_is_ideal_time_of_what_was_made_over_the_cycle(produced, ideal, cycle, expected):
    assert oee.performance(produced, ideal, cycle) == expected


@pytest.mark.parametrize(
    ("total", "planned", "failed", "expected"),
    [(100, 0, 0, 1.0), (100, 20, 5, 0.75), (100, 60, 40, 0.0), (0, 0, 0, None), (None, 1, 1, None), (100, None, 1, None)],
)
def test_availability_is_the_share_of_time_without_downtime(total, planned, failed, expected):
    assert oee.availability(total, planned, failed) == expected


@pytest.mark.parametrize(
    ("made", "defective", "expected"), [(50, 0, 1.0), (50, 10, 0.8), (5, 5, 0.0), (0, 0, None), (None, 0, None)]
)
def test_quality_is_the_share_of_goods_in_order(made, defective, expected):
    assert oee.quality(made, defective) == expected


def test_oee_is_their_product_and_unknown_where_one_is():
    assert oee.oee(0.5, 0.8, 0.9) == pytest.approx(0.36)
    assert oee.oee(0.5, None, 0.9) is None


ROWS = [
    {"machine": "M1", "cycle": 1, "availability": 1.0, "performance": 0.75, "quality": 0.9, "oee": 0.675},
    {"machine": "M2", "cycle": 1, "availability": 0.5, "performance": 0.25, "quality": None, "oee": None},
]


def text_of(pdf: bytes) -> str:
    """What is written on the pages of a PDF as fpdf2 writes them: strings shown one by one in deflated streams."""
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    pages = b"".join(zlib.decompress(stream) for stream in streams)
    return "\n".join(part.decode("latin-1") for part in re.findall(rb"\((.*?)\) Tj", pages))


def test_a_report_is_a_pdf_with_figures_and_dashes_for_unknowns(tmp_path):
    path = tmp_path / "reports" / "report.pdf"
    oee.write_report(path, "OEE of line 1, report 7", ROWS)
    pdf = path.read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert pdf.rstrip().endswith(b"%%EOF")
    lines = text_of(pdf).split("\n")
    assert "OEE of line 1, report 7" in lines
    assert {"M1", "M2", "67.5 %", "75.0 %", "-"} <= set(lines)
    assert lines.count("50.0 %") == 3  # M2's mean, the mean of all performances, and the reading itself
