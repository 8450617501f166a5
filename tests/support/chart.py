"""The Helm chart of a job: its objects by a simple reading without Helm, and Helm itself where Go can build it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

CHART = Path(__file__).parents[2] / "charts" / "elastream-job"
RELEASE, NAMESPACE = "elastream", "streaming"
HELM = "3.18.6"
NAMES = {".Release.Name": RELEASE, ".Release.Namespace": NAMESPACE, 'include "job.account" .': RELEASE}
ACTION = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}")


def objects() -> Iterator[dict[str, Any]]:
    """Return the objects of all templates without conditions and inserted blocks; names are those of `RELEASE`."""
    for template in sorted((CHART / "templates").glob("*.yaml")):
        lines = [line for line in template.read_text().splitlines() if not re.fullmatch(r"\s*\{\{.*\}\}\s*", line)]
        text = ACTION.sub(lambda action: NAMES.get(action[1], "x"), "\n".join(lines))
        yield from YAML(typ="safe").load_all(text)


def helm() -> Path:
    """Return the program, built once and kept; skips the test where it cannot be built."""
    if installed := shutil.which("helm"):
        return Path(installed)
    folder = Path(os.environ["JARS_OF_TESTS"]) / f"helm-{HELM}"
    if not (folder / "helm").exists():
        if shutil.which("go") is None:
            pytest.skip("Go is needed to build Helm")
        build = ["go", "install", f"helm.sh/helm/v3/cmd/helm@v{HELM}"]
        done = subprocess.run(build, env={**os.environ, "GOBIN": str(folder)}, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"Helm could not be built: {done.stderr.strip()[-300:]}")
    return folder / "helm"
