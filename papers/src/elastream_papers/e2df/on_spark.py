"""E2DF's evaluation on Spark: Word Count on real processes; `SCALE` lists the scaling."""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import numpy as np

from elastream.api.run import commanded, run
from elastream.clouds.local.local import Local
from elastream.core.action import SetParallelism
from elastream.core.frames import Floats
from elastream.core.hosts import Billing, HostType
from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.plant import Plan, Policy
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import parquet, text_files
from elastream.errors import ElastreamError
from elastream.evaluation.checks import mean_at_least, mean_at_most
from elastream.evaluation.experiments import ExperimentOptions
from elastream.evaluation.findings import Check, Findings
from elastream.evaluation.page import Table, hosts_plot, load_curve
from elastream.loads import ramp
from elastream.policies.e2df.policy import E2df, E2dfMemory
from elastream.policies.static import Static
from elastream.recording.recorder import Recording
from elastream.report.plots import Curve, Plot
from elastream.spark.dataflow.sinks import latest
from elastream_papers.e2df.experiment import HIGHEST, LOWEST, PAPER, SCALE_IN, SCALE_OUT, SCENARIOS, SLOWER
from elastream_papers.harness.report import report

HOSTS, FIRST_HOSTS = 5, 1
CONTAINER = HostType("container", cores=0.3, slots=1, memory=1000.0, billing=Billing(1.0), start=20.0, stop=3.0)
PEAK = 20_000.0
RISE = 60.0
APPLICATION_PERIOD, INFRASTRUCTURE_PERIOD = 5.0, 10.0
LIMIT = 600.0  # seconds before a run is abandoned
PARTITIONS = 2 * HOSTS  # two per host, so that a host can give some away
FEWER = {"replicas": 0.5, "hosts": 0.24}  # least part below static (the paper: 0.55 and 0.24)
SEED = 1  # of the sentences

# (what, paper, here, why)
SCALE: tuple[tuple[str, str, str, str], ...] = (
    ("hosts of the static provision", "16", f"{HOSTS}", "two cores, of which Spark's driver and this program take one"),
    ("cores of a host", "0.5", f"{CONTAINER.cores:g}", "below a quarter of a core a JVM starves; C_n is 1 in both"),
    ("C_r = R_init", "5", f"{FIRST_HOSTS}", "five of sixteen is between one and two of five"),
    (
        "input rate (sentences/s)",
        f"{LOWEST:g} to {HIGHEST:g}",
        f"{PEAK * LOWEST / HIGHEST:.0f} to {PEAK:,.0f}",
        "what the hosts carry, at the same ratio",
    ),
    ("run (s)", "not given", f"{2 * RISE:g}", "fifteen runs and the start of their hosts within an hour"),
    ("periods of the two levels (s)", "30 and 60", f"{APPLICATION_PERIOD:g} and {INFRASTRUCTURE_PERIOD:g}", "as the run"),
    (
        "replicas",
        "of source, split, count, consume",
        "of source with split, of count with sink",
        (
            "Spark runs as one what needs no shuffle; of count, all that a host holds is a replica. Four units would be "
            "four queries with durable edges between them, each 0.1 s of a batch on either side: more than two cores have"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class SparkScenario:
    """Results of a scenario: means over time; latency in seconds.

    restarts: runs beyond the first. exact: counts equal a plain count. series: (seconds, sentences/s, latency, replicas,
    hosts, CPU use).
    """

    name: str
    latency: float
    replicas: float
    hosts: float
    cpu: float
    records: float
    restarts: int
    moves: int
    exact: bool
    seconds: float
    confinement: str
    series: tuple[tuple[float, ...], ...]

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "mean latency (s)": self.latency,
            "replicas (mean)": self.replicas,
            "hosts (mean)": self.hosts,
            "replicas (most)": float(np.nanmax([row[3] for row in self.series])),
            "hosts (most)": max(row[4] for row in self.series),
            "CPU of hosts (mean)": self.cpu,
            "sentences": self.records,
            "state partitions moved": self.moves,
            "query restarts": self.restarts,
        }


class FromOne(E2df):
    """E2DF that begins with one instance of the source, as in the paper, instead of one per slot."""

    def plan(self, observation: Observation, memory: E2dfMemory | None = None) -> Plan:
        plan = super().plan(observation, memory)
        if memory is not None:
            return plan
        others = (action for action in plan.actions if not isinstance(action, SetParallelism))
        return replace(plan, actions=(SetParallelism("source", 1, why="one replica at first"), *others))


def policy_of(scenario: str) -> Policy:
    if scenario == "static":
        return Static(HOSTS, {"source": HOSTS})
    return FromOne(
        SCALE_OUT,
        SCALE_IN,
        spare=FIRST_HOSTS,
        initial=FIRST_HOSTS,
        low=0.1,
        infrastructure=scenario == "both levels",
        period=APPLICATION_PERIOD,
        infrastructure_period=INFRASTRUCTURE_PERIOD,
    )


def sentences(count: int, seed: int = SEED) -> list[str]:
    """Return random sentences of four to nine words, Zipf-distributed over 1,000 words."""
    rng = random.Random(seed)
    syllables = ("ba", "co", "di", "fu", "ge", "ha", "lo", "mi", "ne", "ru")
    words = [a + b + c for a in syllables for b in syllables for c in syllables]
    often = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    return [" ".join(rng.choices(words, cum_weights=often, k=rng.randint(4, 9))) for _ in range(count)]


def run_scenario(name: str, rise: float = RISE) -> SparkScenario:
    """Run a scenario on its own cluster. Raises ElastreamError if it does not finish."""
    first = FIRST_HOSTS if name == "both levels" else HOSTS
    with tempfile.TemporaryDirectory(prefix="experiment-") as made:
        folder = Path(made)
        with commanded(runs=folder / "runs", limit=LIMIT):
            result = run(
                word_count(folder, rise),
                policy=policy_of(name),
                cloud=Local(CONTAINER, max_hosts=HOSTS, min_hosts=first),
                state_partitions=PARTITIONS,
                period=APPLICATION_PERIOD / 2,
                show=False,
            )
        ending = result.ending
        if ending.status != "finished":
            raise ElastreamError(f"the scenario {name!r} {ending.status}: {ending.reason}")
        exact = counts_are_exact(folder, {source: result.replay(source) for source in result.replayable})
        return summed_up(name, Recording.read(result.directory), exact)


def word_count(folder: Path, rise: float = RISE) -> Dataflow:
    """Return the dataflow; writes its sentences to `folder` first."""
    (folder / "sentences.txt").write_text("\n".join(sentences(20_000)))
    flow = Dataflow("word_count")
    lines = flow.source(
        text_files(folder / "sentences.txt"), load=ramp(PEAK * LOWEST / HIGHEST, PEAK, over=rise).then_back()
    )
    words = lines.flat_map(str.split, returns="word string", name="split")
    words.key_by("word").count().sink(parquet(folder / "out"))
    return flow


def counts_are_exact(folder: Path, taken: Mapping[str, Iterator[str]]) -> bool:
    """Return True if every final count equals a plain count over the records taken."""
    expected = Counter(word for line in taken["source"] for word in line.split())
    return dict(latest(folder / "out").itertuples(index=False)) == expected


def summed_up(name: str, recording: Recording, exact: bool) -> SparkScenario:
    """Return the figures of a run between its first and last observation."""
    assert recording.ending is not None
    facts = recording.ending.facts
    times = recording.times
    width = np.diff(times, append=times[-1])
    placed = np.array([float(len(set(tasks.values()))) for tasks in recording.tasks("count")])
    replicas = recording.parallelism("source") + placed
    hosts = recording.leased
    cpu = _mean_cpu(recording)
    latency = recording.application(Metric.LATENCY)
    columns = (times - times[0], recording.application(Metric.ARRIVAL_RATE), latency, replicas, hosts, cpu)
    return SparkScenario(
        name,
        _mean(latency, width),
        _mean(replicas, width),
        _mean(hosts, width),
        _mean(cpu, width),
        float(facts["records"]),
        int(facts["query runs"]) - 1,
        int(facts["moves"]),
        exact,
        float(times[-1] - times[0]),
        str(recording.header.environment["hosts"]),
        tuple(zip(*(column.tolist() for column in columns), strict=True)),
    )


Scenarios = Mapping[str, SparkScenario]


def over_static(rounds: Sequence[Scenarios], name: str, figure: str) -> list[float]:
    """Return by round a figure of scenario `name` over the static one's."""
    return [getattr(runs[name], figure) / getattr(runs["static"], figure) for runs in rounds]


def bars(rounds: Sequence[Scenarios]) -> tuple[Check, ...]:
    """Return the bars of both elastic scenarios against the static one of the same round."""
    checks = []
    for what, name, figure in (
        ("application: replicas below static, on average", "application", "replicas"),
        ("both levels: replicas below static, on average", "both levels", "replicas"),
        ("both levels: host time below static", "both levels", "hosts"),
    ):
        saved = [1 - each for each in over_static(rounds, name, figure)]
        paper = "paper, section 5: 55 %" if figure == "replicas" else "paper, section 5: 24 %"
        checks.append(mean_at_least(what, saved, FEWER[figure], f"our bar, on Spark; {paper}"))
    for name in SCENARIOS[1:]:
        slower = over_static(rounds, name, "latency")
        paper = "our bar, on Spark; paper, section 5: 19.3 ms against 11.4 ms"
        checks.append(mean_at_most(f"{name}: mean latency over static's", slower, SLOWER, paper))
    for name in SCENARIOS:
        restarts, exact = sum(runs[name].restarts for runs in rounds), all(runs[name].exact for runs in rounds)
        checks.append(Check(f"{name}: query restarts", restarts, "0", restarts == 0, "our bar"))
        counted = "exact" if exact else "wrong"
        checks.append(Check(f"{name}: counts, against a plain count", counted, "exact", exact, "our bar"))
    return tuple(checks)


def _mean(values: Floats, width: Floats) -> float:
    """Return the time-weighted mean of the values that are not NaN."""
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=width[known])) if width[known].sum() > 0 else float("nan")


def _mean_cpu(recording: Recording) -> Floats:
    use = np.array([recording.host(name, Metric.CPU) for name in recording.series.hosts.rows])
    known = ~np.isnan(use)
    with np.errstate(invalid="ignore"):  # no host was measured: unknown
        mean: Floats = np.where(known, use, 0.0).sum(axis=0) / known.sum(axis=0)
    return mean


ROUNDS = 5  # each round in another order, against drift of the machine
QUICK_RISE = 30.0  # seconds of rising load with `quick`: a functional check


def run_e2df_spark(options: ExperimentOptions) -> Findings:
    """Run the three scenarios ROUNDS times, in rotating order. quick: once, with half of the load."""
    begun, found = time.monotonic(), []
    rounds = 1 if options.quick else ROUNDS
    for turn in range(rounds):
        runs = {}
        for number in range(len(SCENARIOS)):
            name = SCENARIOS[(number + turn) % len(SCENARIOS)]
            options.progress(f"{name}, {turn + 1} of {rounds}", turn * len(SCENARIOS) + number, rounds * len(SCENARIOS))
            runs[name] = run_scenario(name, QUICK_RISE if options.quick else RISE)
        found.append({name: runs[name] for name in SCENARIOS})
    options.progress("done", rounds * len(SCENARIOS), rounds * len(SCENARIOS))
    return outcome(found, time.monotonic() - begun)


def outcome(rounds: Sequence[Scenarios], seconds: float) -> Findings:
    return report(
        f"E2DF on Spark: elasticity of operators and of hosts of {CONTAINER.cores:g} cores",
        "A multi-level elasticity framework for distributed data stream processing (Nardelli, Russo Russo, Cardellini "
        "and Lo Presti, 2018), on a real Spark cluster of this machine: one worker process a host, "
        f"{rounds[0]['static'].confinement}. Figures are measured; latency is from a sentence being due to its counts "
        "being committed, and hosts are counted from being asked for to being gone, their start included.",
        {
            "scenarios": {name: [runs[name].metrics for runs in rounds] for name in SCENARIOS},
            "latency over static": {name: over_static(rounds, name, "latency") for name in SCENARIOS[1:]},
        },
        bars(rounds),
        {
            "": [
                _comparison(rounds),
                _ratios(rounds),
                Table("What was scaled to this machine", ("what", "paper", "here", "why"), SCALE),
            ],
            "Over time, first round": [plot for run in rounds[0].values() for plot in _plots(run)],
        },
        seconds,
        paper={name: dict(figures) for name, figures in PAPER.items()},
        plant="spark",
        hosts=rounds[0]["static"].confinement,
    )


def _comparison(rounds: Sequence[Scenarios]) -> Table:
    """Return our absolute figures; only ratios compare with the paper (`_ratios`)."""
    rows = tuple(
        (name, *(_text(fmean(runs[scenario].metrics[name] for runs in rounds)) for scenario in SCENARIOS))
        for name in rounds[0]["static"].metrics
    )
    return Table(f"Word Count on Spark, means of {len(rounds)} runs", ("", *SCENARIOS), rows)


def _ratios(rounds: Sequence[Scenarios]) -> Table:
    rows: list[tuple[str, ...]] = []
    for what, printed, figure in (
        ("replicas", "replicas (mean)", "replicas"),
        ("hosts", "hosts that are up (mean)", "hosts"),
        ("mean latency", "mean latency (ms)", "latency"),
    ):
        ours = (fmean(over_static(rounds, name, figure)) for name in SCENARIOS)
        rows.append((f"{what}, over static's (Spark)", *(f"{value:.2f}" for value in ours)))
        paper = [PAPER[name].get(printed) for name in SCENARIOS]
        baseline = PAPER["static"][printed]
        rows.append(("   paper, section 5", *("-" if value is None else f"{value / baseline:.2f}" for value in paper)))
    return Table("What compares with the paper: ratios", ("", *SCENARIOS), tuple(rows))


def _plots(run: SparkScenario) -> tuple[Plot, Plot]:
    seconds, offered, latency, replicas, hosts, cpu = (list(column) for column in zip(*run.series, strict=True))
    load, unit = load_curve("input rate", seconds, offered), "sentences/s"
    return (
        hosts_plot(
            f"{run.name}: replicas and hosts (Spark; compare Figure 2)", "seconds", seconds, load, unit, replicas, hosts
        ),
        Plot(
            f"{run.name}: latency and use of hosts (Spark; compare Figure 2)",
            "seconds",
            "s, fraction of cores",
            (load, Curve("latency", seconds, latency, colour=4), Curve("CPU", seconds, cpu, colour=2)),
            unit,
        ),
    )


def _text(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.2f}"
