"""Compares policies in simulation, on one dataflow, load and price list.

What a policy costs is only worth saying beside what it keeps of the service level: `Comparison.verdict` never calls a
policy cheaper that misses the target without saying so.
"""

import csv
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elastream.experiments.findings import Check, Findings, environment
from elastream.experiments.page import Block, Heading, Page, Plot, Prose, Table, hosts_plot, line, load_line, table_html
from elastream.experiments.simulated import simulated
from elastream.model.cloud import Billing, HostType
from elastream.model.endpoints import ArrivalPattern
from elastream.model.errors import InputError
from elastream.model.graph import Graph
from elastream.model.plant import Policy, Unknown, refuse_unfit
from elastream.model.stages import lay_out
from elastream.model.units import format_duration, format_rate
from elastream.planning.policies.static import sized
from elastream.simulation import Result, Settings, Travel, make_plant

if TYPE_CHECKING:
    import pandas as pd

PER_SECOND = Billing(1.0, 60.0)
"""Today's cloud billing: by the second, at least a minute."""
SINGLE_UP_TO = 2_000_000
"""Most records of a load that are simulated as single items; larger loads are simulated as cohorts."""
ECU_PER_STANDARD_CORE = 1.0
"""EC2 compute units of the standard core (m1.small), to which speeds are relative."""
PLOTTED = 2_000
"""Most points of a curve on the page; longer runs are subsampled."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of one policy. compliance: fraction of records in time, None without a service level.

    waiting: records still queued at the end. series: rows as in `simulation.Result`. lacked: metrics that the policy lacked
    for rounds, each with the longest time for which it did.
    """

    name: str
    cost: float
    compliance: float | None
    result: Result
    waiting: float
    refused: int
    lacked: tuple[Unknown, ...] = ()

    @property
    def mean_hosts(self) -> float:
        return float(self.result.series[:, 2].mean()) if len(self.result.series) else math.nan

    @property
    def peak_hosts(self) -> float:
        return float(self.result.series[:, 2].max()) if len(self.result.series) else math.nan

    @property
    def frame(self) -> "pd.DataFrame":
        """What happened, as pandas: a row per observation (index `time`, seconds)."""
        import pandas as pd

        columns = ["time", "arrival_rate", "hosts", "instances", "backlog", "in_time"]
        return pd.DataFrame(self.result.series, columns=columns).set_index("time")


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Trials of one load. target: fraction of records that must be in time."""

    graph: Graph
    seconds: float
    records: int
    target: float
    trials: tuple[Trial, ...]

    def meets(self, trial: Trial) -> bool:
        """Whether a trial keeps the target; where nothing was promised, nothing can be missed."""
        return trial.compliance is None or trial.compliance >= self.target

    @property
    def winner(self) -> Trial | None:
        """The cheapest of those that meet the target; the more compliant one on a tie; None where none does."""
        meeting = [trial for trial in self.trials if self.meets(trial)]
        return min(meeting, key=lambda trial: (trial.cost, -(trial.compliance or 0.0)), default=None)

    @property
    def verdict(self) -> str:
        """The best policy and the reason, and what cheaper policies miss."""
        winner = self.winner
        if winner is None:
            best = max(self.trials, key=lambda trial: trial.compliance or 0.0)
            return (
                f"No policy meets the target of {self.target:.1%} in time; the closest is {best.name} with "
                f"{best.compliance:.1%} at a cost of {best.cost:.2f}."
            )
        promised = winner.compliance is not None
        says = (
            f"{winner.name} is the cheapest of those that meet the target" if promised else f"{winner.name} is the cheapest"
        )
        kept = f" ({winner.compliance:.1%} in time, target {self.target:.1%})" if winner.compliance is not None else ""
        sentences = [f"{says}: {winner.cost:.2f}{kept}."]
        if not promised:
            sentences.append("No operator promises a duration and no target latency is given, so compliance is unknown.")
        sentences += [
            f"{trial.name} costs less ({trial.cost:.2f}) but MISSES the target: only {trial.compliance:.1%} in time."
            for trial in self.trials
            if trial.cost < winner.cost and not self.meets(trial)
        ]
        sentences += [
            f"{trial.name} leaves {trial.waiting:,.0f} records waiting at the end."
            for trial in self.trials
            if trial.waiting > 0.01 * self.records
        ]
        return " ".join(sentences)

    @property
    def frame(self) -> "pd.DataFrame":
        """The figures as pandas: a row per policy."""
        import pandas as pd

        return pd.DataFrame([_figures(trial) | {"policy": trial.name} for trial in self.trials]).set_index("policy")

    def __getitem__(self, policy: str) -> Trial:
        """The trial of the policy called so."""
        return {trial.name: trial for trial in self.trials}[policy]

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(trial.name for trial in self.trials)}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return f"{table_html(self.table())}<p>{html.escape(self.verdict)}</p>"

    def outcome(self) -> Findings:
        """Table, page and JSON of the comparison; its one check is that some policy meets the target."""
        winner = self.winner
        check = Check(
            "a policy meets the target",
            winner.name if winner else "none",
            f">= {self.target:.1%} of records in time",
            winner is not None,
            "the command line",
        )
        figures: dict[str, Any] = {
            "dataflow": self.graph.name,
            "seconds": self.seconds,
            "records": self.records,
            "target": self.target,
            "winner": winner.name if winner else None,
            "verdict": self.verdict,
            "policies": {trial.name: _figures(trial) | {"meets target": self.meets(trial)} for trial in self.trials},
        }
        return Findings(figures, {}, (check,), self._page(), environment(plant="simulated"))

    def table(self) -> Table:
        """A table with a row per policy; a missed target is marked in its compliance."""
        rows: list[tuple[str, ...]] = []
        for trial in self.trials:
            kept = "unknown" if trial.compliance is None else f"{trial.compliance:.2%}"
            actions = trial.result.upscalings + trial.result.downscalings
            rows.append(
                (
                    trial.name,
                    f"{trial.cost:.2f}",
                    kept if self.meets(trial) else f"{kept} MISSED",
                    f"{trial.mean_hosts:.2f}",
                    f"{trial.peak_hosts:.0f}",
                    f"{trial.result.leases}",
                    f"{trial.result.early_releases}",
                    f"{actions}",
                    f"{trial.result.migrations}",
                    f"{trial.waiting:,.0f}",
                )
            )
        header: tuple[str, ...] = (
            "policy", "cost", "in time", "hosts (mean)", "hosts (peak)", "leases", "early releases", "scalings",
            "migrations", "left waiting",
        )  # fmt: skip
        if any(trial.lacked for trial in self.trials):
            header = (*header, "remarks")
            remarks = ["; ".join(map(str, trial.lacked)) for trial in self.trials]
            rows = [(*row, remark) for row, remark in zip(rows, remarks, strict=True)]
        caption = (
            f"{self.graph.name}, simulated: {self.records:,} records in {format_duration(self.seconds)} "
            f"({format_rate(self.records / self.seconds)} on average), target {self.target:.1%} in time"
        )
        good = tuple(True if trial is self.winner else None if self.meets(trial) else False for trial in self.trials)
        return Table(caption, header, tuple(rows), good)

    def _page(self) -> Page:
        blocks: list[Block] = [Prose("All figures are simulated."), Prose(self.verdict), self.table()]
        for trial in self.trials:
            blocks += [Heading(trial.name), *_plots(trial)]
        return Page(f"{self.graph.name}: policies compared (simulated)", tuple(blocks))


def compare(
    graph: Graph,
    policies: Mapping[str, Policy],
    host_types: Sequence[HostType],
    *,
    load: ArrivalPattern | None = None,
    seconds: float | None = None,
    target: float = 0.95,
    target_latency: float | None = None,
    max_hosts: int = 1_000,
    monitor: float = 15.0,
    period: float = 60.0,
    seed: int = 1,
    fused: bool = False,
    settings: Settings | None = None,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Comparison:
    """Run every policy on the same load and seed.

    load: for every source, in place of what the sources declare. seconds: how long; the longest load where not given.
    target: fraction of records that must be in time. monitor, period: seconds between observations and between plans.
    fused: whether stages are scaled as on Spark, or (False) every operator by itself. Raises InputError for a load that
    never ends without `seconds`, and whatever the simulated plant refuses.
    """
    if not policies:
        raise InputError("there is no policy to compare")
    if not 0 <= target <= 1:
        raise InputError(f"a target of {target:g} is no fraction between 0 and 1")
    patterns = {source.name: load or source.load for source in graph.sources}
    known = [pattern for pattern in patterns.values() if pattern is not None]
    length = seconds if seconds is not None else max((pattern.seconds for pattern in known), default=0.0)
    if not 0 < length < math.inf:
        bare = ", ".join(repr(name) for name, pattern in patterns.items() if pattern is None)
        lacking = f"there is no load to simulate: source {bare} declares none" if bare else "there is no load to simulate"
        raise InputError("the load never ends: say how long to simulate" if length else lacking)
    records = sum(pattern.count(length) for pattern in known)
    base = settings or Settings(monitor=monitor, travel=Travel.COHORTS if records > SINGLE_UP_TO else Travel.SINGLE)
    layout = lay_out(graph, fused=fused)
    trials = []
    for number, (name, policy) in enumerate(policies.items()):
        progress(name, number, len(policies))
        loads = {source: pattern for source, pattern in patterns.items() if pattern is not None}
        measured = {operator: (each.cost, each.selectivity) for operator, each in base.services.items()}
        policy = sized(policy, layout, host_types, loads, seconds=length, window=target_latency, costs=measured)
        plant = make_plant(
            layout,
            host_types=host_types,
            loads=loads,
            seed=seed,
            settings=base,
            max_hosts=max_hosts,
            target_latency=target_latency,
            seconds=length,
        )
        refuse_unfit(policy, plant.context)
        run = simulated(plant, policy, period=period, until=length)
        waiting = sum(operator.queued for operator in run.result.operators.values())
        kept = _compliance(run.result, target_latency)
        trials.append(Trial(name, run.result.cost, kept, run.result, waiting, run.refused, run.lacked))
        progress(name, number + 1, len(policies))
    return Comparison(graph, length, records, target, tuple(trials))


def _compliance(result: Result, target_latency: float | None) -> float | None:
    """Fraction of records in time: end to end where a target latency is given, else of operators' service levels."""
    if target_latency is None:
        found = result.compliance(1.0)
        return None if math.isnan(found) else found
    kept, offered = result.series[:, 5], result.series[:, 1]
    seen = ~np.isnan(kept) & (offered > 0)
    return float(np.average(kept[seen], weights=offered[seen])) if seen.any() else None


def read_prices(
    path: Path,
    *,
    only: Sequence[str] = (),
    region: str | None = None,
    billing: Billing = PER_SECOND,
    shapes: Path | None = None,
) -> tuple[HostType, ...]:
    """Host types of a CSV price list, dearest last, priced per unit of `billing`.

    Columns: `instance_type`; a price an hour (`usd_per_hour`, or `usd_per_hour_linux`); `vcpu`, `memory_gib` and, where
    there, `ecu` (speed of a core relative to the m1.small's), which `shapes`, another such list, may give instead. Of
    several prices of one type the newest `snapshot_date` counts. only: types wanted, in that order. Raises InputError
    naming file and line.
    """
    known = {row["instance_type"]: row for row in _rows(shapes)} if shapes is not None else {}
    found: dict[str, HostType] = {}
    newest: dict[str, str] = {}
    for number, row in enumerate(_rows(path), start=2):
        name = row.get("instance_type", "")
        if (only and name not in only) or (region and row.get("region") not in (None, region)):
            continue
        if row.get("snapshot_date", "") < newest.get(name, ""):
            continue
        newest[name] = row.get("snapshot_date", "")
        found[name] = _host_type(name, {**known.get(name, {}), **row}, billing, f"{path}, line {number}")
    if missing := [name for name in only if name not in found]:
        raise InputError(f"{path} has no host type {missing[0]!r}")
    if not found:
        raise InputError(f"{path} holds no price")
    return tuple(found[name] for name in only) if only else tuple(sorted(found.values(), key=lambda t: (t.price, t.name)))


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}") from None


def _host_type(name: str, row: Mapping[str, str], billing: Billing, place: str) -> HostType:
    hourly = row.get("usd_per_hour") or row.get("usd_per_hour_linux")
    if not name or hourly is None:
        raise InputError(f"{place}: a price list needs the columns instance_type and usd_per_hour")
    if not row.get("vcpu") or not row.get("memory_gib"):
        raise InputError(f"{place}: how many cores and how much memory {name!r} has is not said (columns vcpu, memory_gib)")
    try:
        cores, memory, price = float(row["vcpu"]), float(row["memory_gib"]) * 2**30 / 1e6, float(hourly)
        speed = float(row["ecu"]) / cores / ECU_PER_STANDARD_CORE if row.get("ecu") else 1.0
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{place}: cores, memory, ecu or price of {name!r} is not a number") from None
    return HostType(
        name, cores=cores, memory=memory, speed=speed, price=price * billing.unit / 3600, billing=billing, slots=10_000
    )


def _figures(trial: Trial) -> dict[str, Any]:
    result = trial.result
    return {
        "cost": trial.cost,
        "compliance": trial.compliance,
        "hosts mean": trial.mean_hosts,
        "hosts peak": trial.peak_hosts,
        "host hours": result.host_seconds / 3600,
        "leases": result.leases,
        "early releases": result.early_releases,
        "upscalings": result.upscalings,
        "downscalings": result.downscalings,
        "migrations": result.migrations,
        "refused actions": trial.refused,
        "left waiting": trial.waiting,
        "lacked": [str(each) for each in trial.lacked],
    }


def _plots(trial: Trial) -> tuple[Plot, Plot]:
    series = trial.result.series[:: max(1, len(trial.result.series) // PLOTTED)]
    seconds, offered, hosts, instances, waiting, kept = series.T.tolist()
    minutes = [time / 60 for time in seconds]
    load = load_line("offered load", minutes, offered, steps=True)
    return (
        hosts_plot(f"{trial.name} (simulated)", "minutes", minutes, load, "records/s", instances, hosts, "instances"),
        Plot(
            f"{trial.name}: waiting and in time (simulated)",
            "minutes",
            "records waiting",
            (line("waiting", minutes, waiting, colour=4), line("in time", minutes, kept, colour=2, axis=2)),
            "fraction in time",
        ),
    )
