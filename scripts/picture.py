"""Draws the README's picture: load, latency and hosts of a run's report on one time axis, as a PNG.

elastream run examples/word_count.py && python scripts/picture.py runs/word_count-...   # needs Chromium or Chrome
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

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


PANELS = ("Load", "Latency", "Hosts")
"""Panels of the time line that the picture shows, by the beginning of their titles."""
BODY_MARGIN, TITLE_HEIGHT, PADDING = 12, 24, 8
"""Pixels: the page's margin, the space of a panel's title, the space below a panel."""


def panels_only(shot: Image.Image, layout: dict[str, Any]) -> Image.Image:
    """Return the panels named in `PANELS` and the time axis, one below the other."""
    margin, height = layout["margin"], layout["height"]
    inner = height - margin["t"] - margin["b"]

    def pixel(part: float) -> int:
        return int(BODY_MARGIN + margin["t"] + round((1 - part) * inner))

    titles = [each["y"] for each in layout["annotations"] if each["text"].startswith(tuple(f"<b>{p}" for p in PANELS))]
    domains = [axis["domain"] for name, axis in layout.items() if name.startswith("yaxis")]
    strips = [
        (pixel(high) - TITLE_HEIGHT, pixel(low) + PADDING)
        for low, high in domains
        if any(abs(pixel(title) - pixel(high)) < TITLE_HEIGHT for title in titles)
    ]
    strips.append((pixel(0) + PADDING, shot.height))
    picture = Image.new("RGB", (shot.width, sum(bottom - top for top, bottom in strips)), "white")
    at = 0
    for top, bottom in strips:
        picture.paste(shot.crop((0, top, shot.width, bottom)), (0, at))
        at += bottom - top
    return picture


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
        picture = panels_only(Image.open(shot).convert("RGB"), figure["layout"])
        picture.quantize(64).save(given.output, optimize=True)
    print(f"{given.output}: {given.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
