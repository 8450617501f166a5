"""A Grafana dashboard, alert rules and a scrape configuration for Prometheus."""

from importlib.resources import files
from pathlib import Path

from elastream.recording.directory import write_text

FILES = ("dashboard.json", "alerts.yaml", "prometheus.yaml")


def write_files(folder: Path) -> tuple[Path, ...]:
    """Write the files to `folder` and return their paths; raises EnvironmentProblem."""
    return tuple(write_text(folder / name, files(__name__).joinpath(name).read_text("utf-8"), "file") for name in FILES)
