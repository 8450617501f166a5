"""Draws the README's picture: the time line of a run's report, as a PNG.

elastream run examples/word_count.py && python scripts/picture.py runs/word_count-...   # needs Chromium or Chrome
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from plotly.offline import get_plotlyjs

from elastream.recording.recorder import Recording
from elastream.report.timeline import timeline

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTH = 1032
"""Pixels; a README is about 850 wide, and screens have more pixels than that."""
PAGE = """<!doctype html><meta charset="utf-8"><style>body{{margin:12px;background:#fff;font-family:sans-serif}}</style>
<div id="figure"></div><script>{plotly}</script>
<script>const figure = {figure}; Plotly.newPlot("figure", figure.data, figure.layout, {{displayModeBar: false}})</script>
"""


def main() -> None:
    """Write the picture of the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parents[1] / "docs/assets/run.png")
    given = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"picture: no browser was found (any of: {', '.join(BROWSERS)})")
    figure = timeline(Recording.read(given.run))
    figure["layout"]["width"] = WIDTH - 24
    with tempfile.TemporaryDirectory() as made:
        page, shot = Path(made) / "page.html", Path(made) / "shot.png"
        page.write_text(PAGE.format(plotly=get_plotlyjs(), figure=json.dumps(figure)), encoding="utf-8")
        size = f"--window-size={WIDTH},{figure['layout']['height'] + 24}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=8000", size]
        subprocess.run([browser, *options, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
        # A palette: a tenth of the size, and no colour of a line changes to the eye.
        Image.open(shot).convert("RGB").quantize(64).save(given.output, optimize=True)
    print(f"{given.output}: {given.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
