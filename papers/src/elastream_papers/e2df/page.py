"""Page of the simulated E2DF experiment, with curves as in Figure 2."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table, hosts_plot, load_curve
from elastream.report.plots import Curve, Plot
from elastream_papers.e2df import experiment as e2df
from elastream_papers.e2df.larger_hosts import LargerHostsCase, LargerHostsRun, larger_host_bars, run_larger_hosts
from elastream_papers.harness.assumptions import assumption_table, labelled, values
from elastream_papers.harness.report import comparison_table, report

Variations: TypeAlias = Mapping[str, Sequence[e2df.E2dfRun]]  # runs of the three scenarios by assumptions


def run_e2df(options: ExperimentOptions) -> Findings:
    """Run the three scenarios with every seed, and at the upper end of the paper's provision.

    sensitivity: also with every assumption halved and doubled.
    """
    given = e2df.E2dfAssumptions()
    sets = [("as assumed", given)]
    if not options.quick:
        sets.append(("the most work that the provision can mean", e2df.heaviest(given)))
    if options.sensitivity:
        sets += labelled(given).items()
    seeds = e2df.SEEDS[:1] if options.quick else e2df.SEEDS
    wanted = [e2df.E2dfCase(scenario, mine, seed) for _, mine in sets for scenario in e2df.SCENARIOS for seed in seeds]
    runs, seconds = run_all(
        e2df.run_case, wanted, options, lambda c: c.scenario, warm=lambda case: e2df.make(case).advance(1.0)
    )
    wide = [LargerHostsCase(seed, given) for seed in seeds]
    larger, more = run_all(run_larger_hosts, wide, options, lambda _: "larger hosts")
    size = len(e2df.SCENARIOS) * len(seeds)
    varied = {name: runs[k * size : (k + 1) * size] for k, (name, _) in enumerate(sets)}
    return outcome(varied, seconds + more, larger)


def outcome(varied: Variations, seconds: float, larger: Sequence[LargerHostsRun] = ()) -> Findings:
    """Return the findings; the bars apply to the first variation."""
    runs = next(iter(varied.values()))
    checks = (*e2df.bars(runs), *(larger_host_bars(larger) if larger else ()))
    of_larger = {name: fmean(run.metrics[name] for run in larger) for name in (larger[0].metrics if larger else ())}
    given = runs[0].case.assumptions
    return report(
        "E2DF: elasticity of operators and of hosts (simulated)",
        "A multi-level elasticity framework for distributed data stream processing (Nardelli, Russo Russo, Cardellini "
        "and Lo Presti, 2018), reproduced on the simulated plant. Every figure that is not marked as the paper's is "
        "simulated. Latency is that of a tuple from the source to the last operator, without what Storm's messaging "
        "adds; so its ratios compare with the paper's, its milliseconds do not.",
        {
            "scenarios": means(runs),
            "both levels: host time that is paid, below static": fmean(e2df.saved(runs, "both levels", PAID)),
            "variations": {
                name: {"bars": {c.name: c.value for c in e2df.bars(each)}, "missed": _missed(e2df.bars(each))}
                for name, each in varied.items()
            },
            "hosts of four slots, means": of_larger,
            "assumptions": values(given),
        },
        checks,
        {
            "": [
                comparison_table(
                    "Word Count, simulated, beside the paper's Figure 2", means(runs), e2df.PAPER, "section 5", _text
                ),
                Table(
                    "Hosts of four slots under a load that jumps every minute, simulated: events in half an hour, means",
                    ("", "times"),
                    tuple((name, f"{value:.1f}") for name, value in of_larger.items()),
                ),
            ],
            "Over time": [plot for run in runs if run.case.seed == runs[0].case.seed for plot in _plots(run)],
            "What the bars hang on": [provision_table(varied), assumption_table(given)],
        },
        seconds,
        paper={name: dict(figures) for name, figures in e2df.PAPER.items()},
        verdict=verdict(varied),
        runs=sum(map(len, varied.values())) + len(larger),
    )


PAID = "hosts that are paid (mean)"


def means(runs: Sequence[e2df.E2dfRun]) -> dict[str, dict[str, float]]:
    return {
        name: {metric: fmean(run.metrics[metric] for run in mine) for metric in mine[0].metrics}
        for name, mine in e2df.by_scenario(runs).items()
        if mine
    }


def provision_table(varied: Variations) -> Table:
    """Return the bars' values under each set of assumptions."""
    rows, good = [], []
    for name, runs in varied.items():
        checks = e2df.bars(runs)
        busiest = e2df.utilisation_at_peak("count", runs[0].case.assumptions)
        rows.append((name, f"{busiest:.0%}", *(str(check.value) for check in checks)))
        good.append(not any(check.missed for check in checks))
    names = (check.name for check in checks)
    return Table(
        "What the bars hang on, simulated (count at peak: how used the static provision's counters are at 550 tuples/s)",
        ("assumed", "count at peak", *names),
        tuple(rows),
        tuple(good),
    )


def verdict(varied: Variations) -> str:
    """Return an explanation of missed bars; empty if none is missed."""
    given, *_ = varied.values()
    if not _missed(e2df.bars(given)):
        return ""
    static = sum(e2df.STATIC.values())
    named = static - e2df.STATIC["source"]
    ends = [means(runs)["both levels"]["replicas (mean)"] for runs in [*varied.values()][:2]]
    savings = sorted(1 - replicas / static for replicas in ends)
    unnamed = 1 - means(given)["both levels"]["replicas without the source's (mean)"] / named
    low = e2df.utilisation_at_peak("count", given[0].case.assumptions)
    band = " and ".join(f"{value:.0%}" for value in savings)
    return (
        "Missed bars are about how many replicas the static provision has too many. The paper gives no work a tuple, only "
        f"that {static} replicas are provided for the peak. Assumed is the least work for which its own thresholds would "
        f"keep all of them at the peak (counters used at {low:.0%}); the most is what brings a replica to the scale-out "
        f"threshold. At these ends the saving in replicas is {band}: nowhere between them can it be "
        f"{e2df.FEWER_REPLICAS:.0%}. The paper's figure means that its static provision was larger than these "
        "thresholds ask for even at the peak. "
        f"How the paper counts matters too: it names {named} of its {static} replicas, the source's is the one left over. "
        f"Without it the saving is {unnamed:.1%}. The bars are about all replicas."
    )


def _plots(run: e2df.E2dfRun) -> tuple[Plot, Plot]:
    minutes, offered, latency, replicas, hosts = (list(column) for column in zip(*run.series, strict=True))
    load = load_curve("input rate", minutes, offered)
    name, unit = run.case.scenario, "tuples/s"
    return (
        hosts_plot(
            f"{name}: replicas and hosts (simulated; compare Figure 2)", "minutes", minutes, load, unit, replicas, hosts
        ),
        Plot(
            f"{name}: latency (simulated; compare Figure 2)",
            "minutes",
            "ms",
            (load, Curve("latency", minutes, latency, colour=4)),
            unit,
        ),
    )


def _missed(checks: Sequence[Check]) -> list[str]:
    return [check.name for check in checks if check.missed]


def _text(_: str, value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
