"""A machine's display, from what the machine did to what OCR made of it."""

from dataclasses import asdict
from itertools import islice

import machine
import pytest
from machine import Reading, draw, needs_tesseract, read, readings, understood

READING = Reading("M3", 17, "planned", 71.4, 18, 286, 9, 170, 20, 0)


TEXT = """MACHINE M3
CYCLE 0017
STATUS PLANNED

TEMPERATURE 71.4
PRODUCED 0018
TOTAL GOODS 0286
DEFECTIVE 0009
TOTAL TIME 0170
SCHEDULED STOP 0020
UNSCHEDULED STOP 0000
"""


def test_the_text_of_a_display_is_understood_line_by_line():
    assert understood(TEXT) == asdict(READING)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("PRODUCED OO18", "produced"),
        ("STATUS PLANED", "status"),
        ("TEMPERATURE 714", "temperature"),
        ("MACHINE 3", "machine"),
        ("TOTAL TIME", "total_time"),
        ("CYCLE -17", "cycle"),
    ],
)
def test_what_was_not_made_out_is_unknown_and_nothing_else_suffers(line, field):
    label = next(label for label, name in machine.SHOWN.items() if name == field)
    text = "".join(f"{line}\n" if each.startswith(label + " ") else f"{each}\n" for each in TEXT.splitlines())
    assert understood(text) == {**asdict(READING), field: None}


@pytest.mark.skipif(needs_tesseract() != "", reason=needs_tesseract())
def test_ocr_reads_what_was_drawn():
    shown = [READING, *islice(readings(5), 0, 30, 5), *islice(readings(8), 3, 60, 12)]
    right = [
        value == found[field] for each in shown if (found := read(draw(each))) for field, value in asdict(each).items()
    ]
    assert sum(right) >= 0.97 * len(right) > 100


def test_a_missing_tesseract_is_reported_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install tesseract-ocr" in needs_tesseract()
