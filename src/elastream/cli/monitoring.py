"""`elastream monitoring FOLDER`: writes a Grafana dashboard, alert rules and a scrape configuration."""

from pathlib import Path
from typing import Annotated

import typer


def monitoring(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write the files to.")]) -> None:
    """Write files for Prometheus and Grafana: dashboard.json, alerts.yaml, prometheus.yaml."""
    from elastream.observability.monitoring import write_files

    for path in write_files(folder):
        typer.echo(str(path))
