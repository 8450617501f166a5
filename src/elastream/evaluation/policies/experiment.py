"""The experiment `policies`, as `elastream experiment` runs it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastream.errors import InputError
from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Findings, environment
from elastream.evaluation.policies.bars import checks_of, page_of
from elastream.evaluation.policies.cells import OURS, Case, gathered, grid, run_case
from elastream.evaluation.policies.loads import recorded_loads

# Recorded rates beside a checkout of the repository.
RATES = "../shared/data/rates"


@dataclass(frozen=True)
class Policies:
    plants: Sequence[str] = ("simulated",)

    def options(self, plant: str) -> Collection[str]:
        return {"rates", "cells"}

    def run(self, plant: str, options: ExperimentOptions, more: Mapping[str, Any]) -> Findings:
        if options.sensitivity:
            raise InputError("policies has no --sensitivity: its grid varies loads, prices, targets and host starts")
        places, sample = more.get("rates"), more.get("cells")
        if places is None:
            places = (RATES,) if Path(RATES).is_dir() and not options.quick else ()
        cells = grid(recorded_loads(places), quick=options.quick, sample=sample)
        cases = sorted((Case(cell, arm) for cell in cells for arm in cell.arms), key=lambda case: case.arm != OURS)
        results, seconds = run_all(run_case, cases, options, str)
        rows = gathered(cells, dict(zip(cases, results, strict=True)))
        checks = checks_of(rows, whole=not options.quick and sample is None)
        figures = {"cells": rows, "seconds": round(seconds, 1)}
        return Findings(figures, {}, checks, page_of(rows, checks), environment(plant="simulated"))


POLICIES = Policies()
