"""Applications of the examples, which experiments on Spark run: they belong to a checkout, not to the installed package."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from elastream.errors import EnvironmentProblem

EXAMPLES = Path(__file__).parents[4] / "examples"


def application(name: str) -> ModuleType:
    """The module of `examples/<name>.py`. Raises EnvironmentProblem where the package was installed without it."""
    if not (EXAMPLES / f"{name}.py").exists():
        raise EnvironmentProblem(f"the application is examples/{name}.py: run this experiment in a checkout")
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return import_module(name)
