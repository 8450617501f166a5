"""Applications of the examples."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from elastream.errors import EnvironmentProblem

EXAMPLES = Path(__file__).parents[4] / "examples"


def application(name: str) -> ModuleType:
    """Return the module of `examples/<name>.py`. Raises EnvironmentProblem if it is not installed."""
    if not (EXAMPLES / f"{name}.py").exists():
        raise EnvironmentProblem(f"the application is examples/{name}.py: run this experiment in a checkout")
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return import_module(name)
