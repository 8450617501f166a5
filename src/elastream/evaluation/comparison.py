"""Policies simulated on one load: figures, table, verdict and page."""

import html
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from elastream.core.decision import Unknown
from elastream.core.wording import UNKNOWN, counted, money, percent, percent_off
from elastream.dataflow.graph import Graph
from elastream.documents.user_code import near
from elastream.evaluation.findings import Check, Findings, environment
from elastream.evaluation.page import Block, Heading, Page, Prose, Table, load_curve, table_html
from elastream.evaluation.worth import Merits
from elastream.report.flow import flow_of_graph
from elastream.report.plots import Curve, Plot
from elastream.simulator import Drift, Result
from elastream.units import format_duration, format_rate

if TYPE_CHECKING:
    import pandas as pd

# columns for value against cost; chi: instants off the target by more than the tolerance
MERITS = ("throughput", "value", "profit", "chi")
# columns with a bound
OVER = ("x bound", "x constant")
STATIC_PEAK = "static peak (not simulated)"
STATIC_PEAK_SIMULATED = "static peak"
BEST_CONSTANT = "best constant fleet"


@dataclass(frozen=True, slots=True)
class Trial:
    """Results of one policy.

    Attributes:
        compliance: Fraction of records in time; None without a service level.
        overdue: Fraction of the load still queued and late.
    """

    name: str
    cost: float
    compliance: float | None
    result: Result
    waiting: float
    refused: int
    lacked: tuple[Unknown, ...] = ()
    overdue: float = 0.0
    merits: Merits | None = None
    remarked: str = ""

    @property
    def mean_hosts(self) -> float:
        return float(self.result.series[:, 2].mean()) if len(self.result.series) else math.nan

    @property
    def peak_hosts(self) -> float:
        return float(self.result.series[:, 2].max()) if len(self.result.series) else math.nan

    @property
    def frame(self) -> "pd.DataFrame":
        import pandas as pd

        columns = ["time", "arrival_rate", "hosts", "instances", "backlog", "in_time", "finished"]
        return pd.DataFrame(self.result.series, columns=columns).set_index("time")


@dataclass(frozen=True, slots=True)
class Peak:
    """Static provision for the load's peak, from declared costs; or the best constant fleet in hindsight.

    Attributes:
        bound: Why no number of hosts holds the load, or empty.
        trial: Its simulation. None: a policy in time costs no more, or `bound`.
        in_hindsight: True for the cheapest constant fleet that meets the target, by simulation.
    """

    hosts: int
    type: str
    cost: float
    bound: str = ""
    trial: Trial | None = None
    in_hindsight: bool = False

    @property
    def title(self) -> str:
        return "best constant fleet in hindsight" if self.in_hindsight else "static peak provision"

    @property
    def fleet(self) -> int:
        """Return the hosts of the simulation, which may need more than the load fills, else `hosts`."""
        peak = math.nan if self.trial is None else self.trial.peak_hosts
        return self.hosts if math.isnan(peak) else round(peak)  # unknown where the load ends before a host is ready


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bound of cost.

    Attributes:
        whole: True if hosts are whole ones in the model.
        note: What the solver did not finish, or empty.
    """

    cost: float
    whole: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Parts of a policy's cost, which add up to it.

    Attributes:
        work: Bound with parts of hosts that start at once and are paid by the second.
        whole: More for billing time units, least hosts, and whole hosts unless the bound has parts of them.
        start: More for the start of hosts.
        plan: More for batches and plans: the policy with perfect forecasts.
        forecast: More for its own forecasts. Below 0 if they leave more records late.
    """

    policy: str
    work: float
    whole: float
    start: float
    plan: float
    forecast: float

    def __str__(self) -> str:
        named = {
            "the records' work": self.work,
            "whole hosts and billing units": self.whole,
            "the start of hosts": self.start,
            "batches and plans": self.plan,
            "forecast errors": self.forecast,
        }
        cost = math.fsum(named.values())
        parts = [f"{part / cost:.0%} for {name}" for name, part in named.items()]
        return f"{self.policy} spends {', '.join(parts[:-1])} and {parts[-1]}."


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Simulator error on its calibration run; `separable` as in `Calibration`."""

    run: str
    figures: tuple[Drift, ...]
    separable: bool

    def __str__(self) -> str:
        off = ", ".join(f"{each.metric} {percent_off(each.relative)}" for each in self.figures)
        text = f"By its own constants {self.run} itself comes out with {off}: expect no better of another load."
        if self.separable:
            return text
        return (
            f"{text} Its batches were all of about one size, so they do not tell what a batch costs from what its records "
            "do: of a load much higher or lower these constants say little."
        )


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Trials of one load.

    Attributes:
        begins: As `Pattern.begins`.
        bound: Lower bound of cost at the target, why there is none, or None if not requested.
        bounds: For policies that miss the target, the bound at what they reach.
        gap: Of `horizon`, if it meets the target.
    """

    graph: Graph
    seconds: float
    records: int
    target: float
    trials: tuple[Trial, ...]
    peak: Peak | str = ""
    target_latency: float | None = None
    error: ExpectedError | None = None
    begins: float | None = None
    bound: Bound | str | None = None
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    gap: Gap | None = None

    def over_bound(self, trial: Trial) -> float:
        """Return the trial's cost over the bound at its own compliance; NaN if unknown."""
        bound = self.bounds.get(trial.name, self.bound)
        return trial.cost / bound.cost if isinstance(bound, Bound) and bound.cost > 0 else math.nan

    def over_constant(self, trial: Trial) -> float:
        """Return the trial's cost over that of the best constant fleet in hindsight; NaN if unknown."""
        if isinstance(self.peak, str) or not self.peak.in_hindsight or not self.peak.cost > 0:
            return math.nan
        return trial.cost / self.peak.cost

    def meets(self, trial: Trial) -> bool:
        return trial.compliance is None or bool(trial.compliance >= self.target)

    @property
    def winner(self) -> Trial | None:
        """Return the cheapest trial that meets the target; compliance breaks ties."""
        meeting = [trial for trial in self.trials if self.meets(trial)]
        return min(meeting, key=lambda trial: (trial.cost, -(trial.compliance or 0.0)), default=None)

    @property
    def winners(self) -> tuple[Trial, ...]:
        """Return the winner and the trials that meet the target at its cost, best compliance first."""
        winner = self.winner
        if winner is None:
            return ()
        tied = [trial for trial in self.trials if self.meets(trial) and math.isclose(trial.cost, winner.cost)]
        return tuple(sorted(tied, key=lambda trial: -(trial.compliance or 0.0)))

    @property
    def static_wins(self) -> bool:
        """Return True if the simulated static peak meets the target and no policy does at its cost."""
        if isinstance(self.peak, str) or self.peak.trial is None or not self.meets(self.peak.trial):
            return False
        return self.winner is None or cheaper(self.peak.trial.cost, self.winner.cost)

    @property
    def promised(self) -> bool:
        return self.target_latency is not None or any(each.max_duration is not None for each in self.graph.operators)

    @property
    def verdict(self) -> str:
        """Return the best policy, cheaper ones that miss, the static peak's cost, and the simulator's error."""
        error = [] if self.error is None else [str(self.error)]
        return " ".join(
            filter(None, (*self._judged(), *self._left(), self._peak_sentence(), self._bound_sentence(), *error))
        )

    def _judged(self) -> list[str]:
        winner = self.winner
        if winner is None:
            best = max(self.trials, key=lambda trial: trial.compliance or 0.0)
            closest = f"{best.name} with {_share(best.compliance)} at a cost of {money(best.cost)}"
            return [f"No policy meets the target of {_share(self.target)} in time; the closest is {closest}."]
        if not self.promised:
            return [
                f"{self._best()}: {money(winner.cost)}.",
                "No operator promises a duration and no target latency is given, so compliance is unknown.",
            ]
        shares = dict.fromkeys(_share(trial.compliance) for trial in self.winners)
        share = f"({' and '.join(shares)} in time, target {_share(self.target)})"
        those = "that meets the target" if self.static_wins else "of those that meet the target"
        sentences = [f"{self._best()} {those}: {money(winner.cost)} {share}."]
        return sentences + [
            f"{trial.name} costs less ({money(trial.cost)}) but MISSES the target: only {_share(trial.compliance)} in time."
            for trial in self.trials
            if trial.cost < winner.cost and not self.meets(trial)
        ]

    def _best(self) -> str:
        names = [trial.name for trial in self.winners]
        among = "the cheapest policy" if self.static_wins else "the cheapest"
        if len(names) == 1:
            return f"{names[0]} is {among}"
        return f"{', '.join(names[:-1])} and {names[-1]} cost the same, each {among}"

    def _left(self) -> list[str]:
        texts = []
        for trial in self.trials:
            if trial.result.committed <= 0:
                texts.append(f"{trial.name}: no record reached a sink.")
            elif trial.overdue > 0.01:
                texts.append(f"{trial.name}: {percent(trial.overdue)} of the records still wait at the end, and are late.")
            elif trial.waiting > 0.01 * self.records:
                texts.append(f"{trial.name} leaves {counted(round(trial.waiting), 'record')} waiting at the end.")
            if trial.remarked and not self.meets(trial):
                texts.append(f"{trial.name} remarks: {trial.remarked}.")
        return texts

    def _peak_sentence(self) -> str:
        if isinstance(self.peak, str):
            return f"The cost of the static peak provision is unknown: {self.peak}." if self.peak else ""
        hosts = counted(self.peak.fleet, "host")
        fleet = f"{hosts} of {self.peak.type} for all of the load"
        trial = self.peak.trial
        title = self.peak.title
        if trial is None:
            bound = f", but at the peak {self.peak.bound}" if self.peak.bound else ""
            return f"The {title}, {fleet}, costs {money(self.peak.cost)}{bound}."
        share = f"{_share(trial.compliance)} in time"
        if self.static_wins:
            better = "cheaper than every policy in time" if self.winner else "in time, as no policy is"
            return f"The {title} is {better}: {fleet}, {money(trial.cost)} ({share})."
        if self.meets(trial):
            return f"The {title}, {fleet}, costs {money(trial.cost)} ({share})."
        return f"The {title}, {fleet}, costs {money(trial.cost)} but MISSES the target: only {share}."

    def _bound_sentence(self) -> str:
        if not isinstance(self.bound, Bound):
            return f"{self.bound[:1].upper()}{self.bound[1:]}." if self.bound else ""
        note = f" ({self.bound.note})" if self.bound.note else ""
        least = f"No policy can meet the target on this load for less than {money(self.bound.cost)}{note}"
        ratio = math.nan if self.winner is None else self.over_bound(self.winner)
        times = "." if self.winner is None or math.isnan(ratio) else f"; {self.winner.name} costs {ratio:.2f} times that."
        return least + times + ("" if self.gap is None else f" {self.gap}")

    @property
    def frame(self) -> "pd.DataFrame":
        import pandas as pd

        return pd.DataFrame([_figures(trial) | {"policy": trial.name} for trial in self.trials]).set_index("policy")

    def __getitem__(self, policy: str) -> Trial:
        trials = {trial.name: trial for trial in self.trials}
        if policy not in trials:
            raise KeyError(f"there is no policy {policy!r}{near(policy, trials)}")
        return trials[policy]

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(trial.name for trial in self.trials)}: {self.verdict}>"

    def _repr_html_(self) -> str:
        return f"{table_html(self.table())}<p>{html.escape(self.verdict)}</p>"

    def outcome(self) -> Findings:
        winner = self.winner
        check = Check(
            "a policy meets the target",
            " and ".join(trial.name for trial in self.winners) or "none",
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
            "winners": [trial.name for trial in self.winners],
            "verdict": self.verdict,
            "static peak": None
            if isinstance(self.peak, str)
            else {
                "hosts": self.peak.hosts,
                "type": self.peak.type,
                "cost": self.peak.cost,
                **({"in hindsight": True} if self.peak.in_hindsight else {}),
                **({} if (trial := self.peak.trial) is None else {"simulated": _figures(trial)}),
            },
            "policies": {
                trial.name: _figures(trial) | {"meets target": self.meets(trial)} | self._over_figures(trial)
                for trial in self.trials
            },
        }
        if self.bound is not None:
            figures["bound"] = asdict(self.bound) if isinstance(self.bound, Bound) else {"cost": None, "note": self.bound}
        if self.gap is not None:
            figures["gap"] = asdict(self.gap)
        if self.error is not None:
            figures["expected error"] = {
                each.metric: None if math.isnan(each.relative) else each.relative for each in self.error.figures
            }
        return Findings(figures, {}, (check,), self._page(), environment(plant="simulated"))

    def _over_figures(self, trial: Trial) -> dict[str, Any]:
        ratios = {"cost over bound": self.over_bound(trial), "cost over constant": self.over_constant(trial)}
        relative = {name: None if math.isnan(ratio) else ratio for name, ratio in ratios.items()}
        return {} if self.bound is None else relative

    def table(self) -> Table:
        rows: list[tuple[str, ...]] = []
        judged_by = MERITS if any(trial.merits for trial in self.trials) else ()
        compared_to = OVER if self.bound is not None else ()
        for trial in self.trials:
            actions = trial.result.upscalings + trial.result.downscalings
            rows.append(
                (
                    trial.name,
                    money(trial.cost),
                    self._in_time(trial),
                    *self._over(trial)[: len(compared_to)],
                    *_merits(trial.merits),
                    f"{trial.mean_hosts:.2f}",
                    f"{trial.peak_hosts:.0f}",
                    f"{trial.result.leases}",
                    f"{trial.result.early_releases}",
                    f"{actions}",
                    f"{trial.result.migrations}",
                    f"{trial.waiting:,.0f}",
                )
            )
        if isinstance(self.peak, Peak):
            hosts = f"{self.peak.fleet}"
            judged = (UNKNOWN,) * len(judged_by)
            name, cost, in_time, over = STATIC_PEAK, self.peak.cost, UNKNOWN, (UNKNOWN,) * len(compared_to)
            if (fleet := self.peak.trial) is not None:
                name, cost, in_time = fleet.name, fleet.cost, self._in_time(fleet)
                over = self._over(fleet)[: len(compared_to)]
            rows.append((name, money(cost), in_time, *over, *judged, hosts, hosts, hosts, *("0",) * 3, UNKNOWN))
        header: tuple[str, ...] = (
            "policy", "cost", "in time", *compared_to, *judged_by, "hosts (mean)", "hosts (peak)", "leases",
            "early releases", "scalings", "migrations", "left waiting",
        )  # fmt: skip
        if any(trial.lacked for trial in self.trials):
            header = (*header, "remarks")
            remarks = ["; ".join(map(str, trial.lacked)) for trial in self.trials]
            rows = [(*row, remark) for row, remark in zip_longest(rows, remarks, fillvalue="")]
        within = "" if self.target_latency is None else f" (within {format_duration(self.target_latency)})"
        caption = (
            f"{self.graph.name}, simulated: {counted(self.records, 'record')} in {format_duration(self.seconds)} "
            f"({format_rate(self.records / self.seconds)} on average), target {_share(self.target)} in time{within}"
        )
        winners = {trial.name for trial in self.winners}
        good = tuple(True if trial.name in winners else None if self.meets(trial) else False for trial in self.trials)
        return Table(caption, header, tuple(rows), (*good, *(None,) * (len(rows) - len(good))))

    def _over(self, trial: Trial) -> tuple[str, ...]:
        ratios = (self.over_bound(trial), self.over_constant(trial))
        return tuple(UNKNOWN if math.isnan(each) else f"{each:.2f}" for each in ratios)

    def _in_time(self, trial: Trial) -> str:
        compliance = "unknown" if trial.compliance is None else f"{trial.compliance:.2%}"
        return compliance if self.meets(trial) else f"{compliance} MISSED"

    def _page(self) -> Page:
        blocks: list[Block] = [Prose("All figures are simulated."), Prose(self.verdict), self.table()]
        blocks += [Heading("Over time"), *self._plots(), Heading("Dataflow"), flow_of_graph(self.graph)]
        return Page(f"{self.graph.name}: policies compared (simulated)", tuple(blocks))

    def _plots(self) -> list[Plot]:
        times, offered = self.trials[0].result.series[:, :2].T
        load = load_curve("offered load", times, offered, steps=True)

        def plot(caption: str, unit: str, column: int, steps: bool = False) -> Plot:
            curves = [
                Curve(trial.name, trial.result.series[:, 0], trial.result.series[:, column], number, steps=steps)
                for number, trial in enumerate(self.trials)
            ]
            title, span = f"{caption} (simulated)", (0.0, self.seconds)
            return Plot(title, "seconds", unit, (load, *curves), "records/s", begins=self.begins, span=span)

        return [
            plot("Hosts", "hosts", 2, steps=True),
            plot("Instances of operators", "instances", 3, steps=True),
            plot("Records waiting", "records", 4),
            plot("In time", "fraction of records", 5),
        ]


def cheaper(cost: float, than: float) -> bool:
    return cost < than and not math.isclose(cost, than)


def _merits(merits: Merits | None) -> tuple[str, ...]:
    if merits is None:
        return ()
    numbers = [UNKNOWN if math.isnan(n) else f"{n:.3f}" for n in (merits.throughput, merits.value, merits.profit)]
    return (*numbers, f"{merits.unstable} of {merits.instants}")


def _share(fraction: float | None) -> str:
    """Format a fraction to 0.1%, never rounded up to 100% or past a missed target."""
    return UNKNOWN if fraction is None else f"{math.floor(fraction * 1000 + 1e-9) / 1000:.1%}"


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
        "overdue": trial.overdue,
        "lacked": [str(each) for each in trial.lacked],
        **({} if trial.merits is None else _merits_by_name(trial.merits)),
    }


def _merits_by_name(merits: Merits) -> dict[str, Any]:
    figures = {"throughput": merits.throughput, "value": merits.value, "profit": merits.profit}
    numbers = {name: None if math.isnan(number) else number for name, number in figures.items()}
    return {**numbers, "chi": merits.unstable, "instants": merits.instants}
