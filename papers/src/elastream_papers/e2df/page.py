"""Page of the simulated E2DF experiment, with curves as in Figure 2."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from elastream.evaluation.cases import run_all
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table, hosts_plot, load_curve
from elastream.report.plots import Curve, Plot
from elastream_papers.e2df import experiment as e2df
from elastream_papers.e2df.larger_hosts import LargerHostsCase, LargerHostsRun, larger_host_bars, run_larger_hosts
from elastream_papers.e2df.second_level import SecondLevel, run_second_level
from elastream_papers.harness.assumptions import assumption_table, values, variations
from elastream_papers.harness.report import by_verdict, comparison_table, report
from elastream_papers.harness.sensitivity import sensitivity, turned

VARIED_SEEDS = e2df.SEEDS[:2]


def run_e2df(options: ExperimentOptions) -> Findings:
    """Run the three scenarios with every seed, and the hosts of four slots.

    sensitivity: also a curve over every assumption, and at the upper end of the paper's provision.
    """
    assumptions = e2df.E2dfAssumptions()
    seeds: Sequence[int] = e2df.SEEDS[:1] if options.quick else e2df.SEEDS
    sets = [(assumptions, seeds)]
    if options.sensitivity:
        sets += [(varied, seeds if options.quick else VARIED_SEEDS) for varied in changes(assumptions).values()]
    wanted = [e2df.E2dfCase(scenario, mine, seed) for mine, some in sets for scenario in e2df.SCENARIOS for seed in some]
    runs, seconds = run_all(
        e2df.run_case, wanted, options, lambda c: c.scenario, warm=lambda case: e2df.make(case).advance(1.0)
    )
    wide = [LargerHostsCase(seed, assumptions) for seed in seeds]
    larger, more = run_all(run_larger_hosts, wide, options, lambda _: "larger hosts")
    second, further = run_second_level(assumptions, options)
    return outcome(runs, seconds + more + further, larger, second)


def changes(assumptions: e2df.E2dfAssumptions) -> Mapping[tuple[str, float], e2df.E2dfAssumptions]:
    """Return the variations of the assumptions, and the most work that the provision can mean."""
    heaviest = e2df.heaviest(assumptions)
    return {**variations(assumptions), ("work", round(heaviest.work / assumptions.work, 3)): heaviest}


def outcome(
    every: Sequence[e2df.E2dfRun],
    seconds: float,
    larger: Sequence[LargerHostsRun] = (),
    second: SecondLevel | None = None,
) -> Findings:
    """Return the findings; the bars apply to the assumptions of the first run."""
    assumptions = every[0].case.assumptions
    runs = [run for run in every if run.case.assumptions == assumptions]
    base = e2df.bars([run for run in runs if run.case.seed in VARIED_SEEDS])
    varied = {
        change: e2df.bars(mine)
        for change, other in changes(assumptions).items()
        if (mine := [run for run in every if run.case.assumptions == other and other != assumptions])
    }
    checks = (*e2df.bars(runs), *(larger_host_bars(larger) if larger else ()), *(second.bars() if second else ()))
    of_larger = {name: fmean(run.metrics[name] for run in larger) for name in (larger[0].metrics if larger else ())}
    return report(
        "E2DF: elasticity of operators and of hosts (simulated)",
        "A multi-level elasticity framework for distributed data stream processing (Nardelli, Russo Russo, Cardellini "
        "and Lo Presti, 2018), reproduced on the simulated plant. Every figure that is not marked as the paper's is "
        "simulated. Latency is that of a tuple from the source to the last operator, without what Storm's messaging "
        "adds; so its ratios compare with the paper's, its milliseconds do not.",
        {
            "scenarios": means(runs),
            "both levels: host time that is paid, below static": fmean(e2df.saved(runs, "both levels", PAID)),
            "sensitivity": turned(base, varied),
            "hosts of four slots, means": of_larger,
            "hosts that start slowly": second.figures if second else {},
            "assumptions": values(assumptions),
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
                *([second.table()] if second else []),
            ],
            "Over time": [plot for run in runs if run.case.seed == runs[0].case.seed for plot in _plots(run)],
            "What is assumed": [assumption_table(assumptions)],
            "What depends on it": sensitivity(base, varied),
        },
        seconds,
        paper={name: dict(figures) for name, figures in e2df.PAPER.items()},
        verdict=verdict(runs, checks),
        runs=len(every) + len(larger) + (len(second.tuned) + len(second.judged) if second else 0),
    )


PAID = "hosts that are paid (mean)"


def means(runs: Sequence[e2df.E2dfRun]) -> dict[str, dict[str, float]]:
    return {
        name: {metric: fmean(run.metrics[metric] for run in mine) for metric in mine[0].metrics}
        for name, mine in e2df.by_scenario(runs).items()
        if mine
    }


def verdict(runs: Sequence[e2df.E2dfRun], checks: Sequence[Check]) -> str:
    """Return the missed bars, and how the paper's static provision explains the savings."""
    static = sum(e2df.STATIC.values())
    named = static - e2df.STATIC["source"]
    both = means(runs)["both levels"]
    unnamed = 1 - both["replicas without the source's (mean)"] / named
    busiest = e2df.utilisation_at_peak("count", runs[0].case.assumptions)
    return (
        f"{by_verdict(checks, missed='Missed', undecided='Undecided')} The paper gives no work a tuple, only that {static} "
        "replicas are provided for the peak. Assumed is the least work for which its own thresholds would keep all of them "
        f"at the peak (counters used at {busiest:.0%}); the most is what brings a replica to the scale-out threshold. More "
        f"work saves less, so {e2df.FEWER_REPLICAS:.0%} means a static provision larger than these thresholds ask for even "
        f"at the peak. The paper names {named} of its {static} replicas, the source's is the one left over: without it the "
        f"saving is {unnamed:.1%}. The bars are about all replicas."
    ).lstrip()


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


def _text(_: str, value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
