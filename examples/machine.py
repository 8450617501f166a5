"""Simulates a manufacturing machine and its display: the figures of each cycle, drawn as an image and read by OCR.

The display models machines without a data interface: a camera takes an image, and tesseract reads it. A field whose text
is not valid for such a display is unknown (None).
"""

import io
import os
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from PIL import Image, ImageDraw, ImageFont

__all__ = ["CYCLE", "IDEAL", "STATES", "TOO_HOT", "Reading", "draw", "needs_tesseract", "read", "readings"]

CYCLE = 10.0
"""Reporting cycle of a machine, seconds (the paper: an image "every 10 s")."""
IDEAL = 0.5
"""Ideal production time of one item, seconds."""
TOO_HOT = 90.0
"""Temperature above which a warning is sent, degrees."""
STATES = ("available", "planned", "defect")
"""States of a machine; a planned downtime causes no warning."""

STAYS: Mapping[str, float] = {"available": 0.85, "planned": 0.6, "defect": 0.5}
"""Probability that a machine stays in a state for another cycle."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The fields of a display at the end of a cycle. Times in seconds; totals count from the machine's start."""

    machine: str
    cycle: int
    status: str
    temperature: float
    produced: int
    total_produced: int
    total_defective: int
    total_time: int
    scheduled_downtime: int
    unscheduled_downtime: int


SHOWN: Mapping[str, str] = {
    "MACHINE": "machine",
    "CYCLE": "cycle",
    "STATUS": "status",
    "TEMPERATURE": "temperature",
    "PRODUCED": "produced",
    "TOTAL GOODS": "total_produced",
    "DEFECTIVE": "total_defective",
    "TOTAL TIME": "total_time",
    "SCHEDULED STOP": "scheduled_downtime",
    "UNSCHEDULED STOP": "unscheduled_downtime",
}
"""Label on the display -> field of a reading, line by line."""

WIDTH, LINE, MARGIN, LETTERS = 520, 34, 14, 24
"""Pixels: width of the display, height of a line, margin, height of letters (larger ones are slower to read)."""


def readings(machine: int) -> Iterator[Reading]:
    """Endless readings of machine number `machine`, one per cycle; deterministic."""
    chance = random.Random(machine)
    status, heat = "available", 60.0
    produced = goods = defective = planned = failed = 0
    cycle = 0
    while True:
        cycle += 1
        if chance.random() > STAYS[status]:
            status = chance.choices(STATES, (6, 2, 3))[0]
        produced = 0 if status != "available" else chance.randint(12, int(CYCLE / IDEAL))
        goods += produced
        defective += sum(chance.random() < 0.04 for _ in range(produced))
        planned += int(CYCLE) * (status == "planned")
        failed += int(CYCLE) * (status == "defect")
        target = {"available": 82.0, "planned": 55.0, "defect": 97.0}[status]
        heat += 0.5 * (target - heat) + chance.gauss(0, 2)
        yield Reading(
            f"M{machine}", cycle, status, round(heat, 1), produced, goods, defective, cycle * int(CYCLE), planned, failed
        )


def draw(reading: Reading) -> bytes:
    """The display as a greyscale PNG image of about 10,000 bytes (the paper's images have 12,500)."""
    image = Image.new("L", (WIDTH, 2 * MARGIN + LINE * len(SHOWN)), 246)
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(LETTERS)
    values = asdict(reading)
    for line, (label, field) in enumerate(SHOWN.items()):
        height = MARGIN + line * LINE
        pen.text((MARGIN, height), label, 30, font)
        pen.text((WIDTH - MARGIN, height), _shown(values[field]), 30, font, anchor="ra")
    written = io.BytesIO()
    image.save(written, "png")
    return written.getvalue()


def _shown(value: str | int | float) -> str:
    # Counters have four digits, as on machines: OCR often misreads a single 0.
    return f"{value:04d}" if isinstance(value, int) else str(value).upper()


def needs_tesseract() -> str:
    """An instruction if the program `tesseract` is missing; empty if it is installed."""
    if shutil.which("tesseract"):
        return ""
    return "the program tesseract, which reads the displays, is not installed: run 'apt-get install tesseract-ocr' as root"


def read(image: bytes) -> dict[str, str | int | float | None]:
    """The fields of the display in `image`, read by tesseract; None for an unreadable field."""
    import pytesseract  # imported on use: only hosts that read displays need it

    # More threads than cores slow tesseract down.
    os.environ["OMP_THREAD_LIMIT"] = "1"
    text = pytesseract.image_to_string(Image.open(io.BytesIO(image)), config="--psm 6")
    return understood(text)


def understood(text: str) -> dict[str, str | int | float | None]:
    """The fields in the text of a display, one per line."""
    found: dict[str, str | int | float | None] = dict.fromkeys(SHOWN.values())
    for line in text.splitlines():
        for label, field in SHOWN.items():
            if line.upper().startswith(label + " "):
                found[field] = _value(field, line[len(label) :].strip())
    return found


def _value(field: str, text: str) -> str | int | float | None:
    if field == "machine":
        return text if re.fullmatch(r"M\d+", text) else None
    if field == "status":
        return text.lower() if text.lower() in STATES else None
    if field == "temperature":
        return float(text) if re.fullmatch(r"\d+\.\d", text) else None
    return int(text) if re.fullmatch(r"\d+", text) else None
