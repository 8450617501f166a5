"""Draws the README's picture: load, latency and hosts of a run's report on one time axis, as a PNG.

elastream run examples/word_count.py && python scripts/picture.py runs/word_count-...   # needs Chromium or Chrome
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image

import elastream.report
from elastream.recording.recorder import Recording
from elastream.report.plots import plot_html
from elastream.report.timeline import timeline

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH, PLOT_HEIGHT = 1032, 190
"""Pixels; a README is about 850 wide, and screens have more pixels than that."""
PLOTS = ("Load, records/s", "Latency, s", "Hosts")
"""Plots of the time line that the picture shows, by their titles."""
PAGE = '<!doctype html><meta charset="utf-8"><style>{style} body {{ padding: 4px 12px }}</style>{plots}'


def main() -> None:
    """Write the picture of the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parents[1] / "docs/assets/run.png")
    given = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"picture: no browser was found (any of: {', '.join(BROWSERS)})")
    plots = [replace(each, marks=()) for each in timeline(Recording.read(given.run)).plots if each.caption in PLOTS]
    style = (Path(elastream.report.__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as made:
        page, shot = Path(made) / "page.html", Path(made) / "shot.png"
        page.write_text(PAGE.format(style=style, plots="".join(map(plot_html, plots))), encoding="utf-8")
        size = f"--window-size={WIDTH},{len(plots) * PLOT_HEIGHT}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", size]
        subprocess.run([browser, *options, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
        # A palette: a tenth of the size, and no colour of a line changes to the eye.
        Image.open(shot).convert("RGB").quantize(64).save(given.output, optimize=True)
    print(f"{given.output}: {given.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
