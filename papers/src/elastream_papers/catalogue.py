"""Experiments by name, as `pyproject.toml` registers them: entry points of the group `elastream.experiments`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Findings


@dataclass(frozen=True)
class Experiment:
    """Functions that run an experiment, by plant, as "module:name" below this package; the default first."""

    functions: Mapping[str, str]

    @property
    def plants(self) -> tuple[str, ...]:
        """Plants of the experiment, the default first."""
        return tuple(self.functions)

    def options(self, plant: str) -> frozenset[str]:
        """Return the names of the options that this experiment alone has on `plant`."""
        return frozenset(inspect.signature(self._function(plant)).parameters) - {"options"}

    def run(self, plant: str, options: ExperimentOptions, more: Mapping[str, Any]) -> Findings:
        """Run the experiment on `plant`. more: its own options by name."""
        return self._function(plant)(options, **more)

    def _function(self, plant: str) -> Callable[..., Findings]:
        function: Callable[..., Findings] = resolve_name(f"elastream_papers.{self.functions[plant]}")
        return function


VISP = Experiment({"simulated": "visp.page:run_visp", "spark": "visp.on_spark:run_visp_spark"})
E2DF = Experiment({"simulated": "e2df.page:run_e2df", "spark": "e2df.on_spark:run_e2df_spark"})
OTD = Experiment({"simulated": "otd.page:run_otd", "spark": "placing.page:run_otd_spark"})
ELASTIC_ALLOCATOR = Experiment(
    {"simulated": "elastic_allocator.page:run_elastic_allocator", "spark": "placing.page:run_elastic_allocator_spark"}
)
NSTORM = Experiment({"spark": "nstorm.page:run_nstorm"})
DYNAMIC_DATAFLOW = Experiment(
    {
        "simulated": "thesis.dynamic_dataflow.page:run_dynamic_dataflow",
        "spark": "thesis.dynamic_dataflow.on_spark:run_dynamic_dataflow_spark",
    }
)
REACTIVE = Experiment({"simulated": "thesis.reactive.page:run_reactive"})
LOOKAHEAD = Experiment({"simulated": "thesis.lookahead.page:run_lookahead"})
RESILIENCE = Experiment(
    {"simulated": "thesis.resilience.page:run_resilience", "spark": "thesis.resilience.on_spark:run_resilience_spark"}
)
