"""`simulate(...)`: tries policies on a dataflow in simulated time, from a program or a notebook.

`elastream simulate` is the same call. What is given says what is simulated: on a cloud, micro-batches of fused stages
as Spark runs them; on a list of host types, a queue and instances for every operator.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from elastream.api.arguments import refuse_others
from elastream.clouds.provider import Cloud
from elastream.core.composition import consistency_of
from elastream.core.fitting import doubts, refuse_partitions, refuse_replicas, refuse_rules
from elastream.core.hosts import HostType
from elastream.core.plant import Policy
from elastream.core.scaling import NO_RULES, ScalingRules
from elastream.dashboard.progress import progress_bar
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import ArrivalPattern
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable
from elastream.dataflow.operators import Kind
from elastream.documents.machines import links_from, speeds_from
from elastream.documents.registry import POLICY
from elastream.errors import CloudError, InputError
from elastream.experiments.calibrated import calibration_of
from elastream.experiments.compare import compare
from elastream.experiments.comparison import Comparison, ExpectedError
from elastream.experiments.drift import replayed
from elastream.guards.document import load_guards
from elastream.loads import LinkSource, SpeedSource, load_from
from elastream.recording.recorder import Recording
from elastream.simulator import Settings
from elastream.units import duration, pause

FUSED = (1.0, 2.0)
"""Seconds between observations and between plans where stages are fused: those of a run on Spark."""
APART = (15.0, 60.0)
"""The same where every operator is a stage of its own: VISP's."""
LARGEST_SEED = 2**32 - 1
MOST_HOSTS = 1_000
"""Most hosts at once where no cloud says how many."""
EXPECTED = ("latency p50", "latency p99", "backlog, mean", "host time")
"""Figures of a recorded run that say how far the simulator is off."""
REPLAYS = 3
"""Simulations of it, of which the median counts."""

log = logging.getLogger(__name__)


def simulate(
    flow: Dataflow | Graph,
    policies: Policy | Iterable[Policy] | Mapping[str, Policy],
    *,
    cloud: Cloud | None = None,
    host_types: Sequence[HostType] | HostType = (),
    load: ArrivalPattern | str | Path | None = None,
    limit: float | str | None = None,
    target_latency: float | str | None = None,
    target: float = 0.95,
    max_hosts: int | None = None,
    min_hosts: int | None = None,
    calibrate: Path | str | None = None,
    fused: bool | None = None,
    period: float | str | None = None,
    guards: Path | str | None = None,
    tables: Sequence[KeyTable] = (),
    consistency: str = "batch",
    replicas: int = 0,
    state_partitions: int | None = None,
    speeds: SpeedSource | str | Path | None = None,
    links: LinkSource | str | Path | None = None,
    scaling: ScalingRules = NO_RULES,
    seed: int = 1,
    show: bool = True,
) -> Comparison:
    """Simulate `flow` under each of `policies` on the same load, and compare cost and records in time.

    policies: one, several, or several by the names that the comparison is to use. cloud: whose hosts are leased, such as
    `Local(...)`, fused as on Spark. host_types: hosts to lease instead, those of a price list by `read_prices`. load: a
    pattern, a CSV file of counts, a YAML file, or text such as `"50/s"`, for every source in place of what it declares.
    limit: how long to simulate; by default until the load ends. target: fraction of records that must be in time.
    max_hosts, min_hosts: at once, in place of the cloud's.
    calibrate: folder of a run on Spark whose measured costs and hosts are used. fused: micro-batches of fused stages, or
    a queue for each operator, in place of what the hosts say. period: time between two plans. guards: a file of guards.
    tables: key tables, as of `run`. consistency: what records under way meet when alternates change, as of `run`, or
    `"rewired"`: what comes first. replicas: copies of each state partition, as of `run`, where stages are fused.
    state_partitions: of each keyed operator, where stages are fused; by default as of `run`, but for no more hosts than
    twice those that the load's peak fills.
    speeds: how fast hosts are meanwhile, as factors on the speeds of their types: a generator such as `SpeedWalk(seed=3)`,
    text such as `"walk:seed=3"` or `"ec2"`, or a CSV file (`recorded_speeds`). links: the same of latency and bandwidth
    between hosts, `Ec2Links()`, `"ec2"` or a file (`recorded_links`), of operators apart. scaling: rules for the number of
    hosts, as of `run`; simulated time begins on Thursday, 1 January 1970, 00:00 UTC. seed: of all random numbers but
    theirs. show: say how far it is, on a terminal with a bar, elsewhere with a line every ten seconds.

    Raises InputError for a load without end and no `limit`, CloudError without hosts, and whatever cannot be simulated.
    """
    graph = flow.graph if isinstance(flow, Dataflow) else flow
    given = _host_types(host_types)
    if max_hosts is not None and max_hosts < 1:
        raise CloudError(f"max_hosts is {max_hosts}: a dataflow needs at least one host")
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"the seed {seed} is out of range: it is a whole number from 0 to {LARGEST_SEED}")
    settings: Settings | None = None
    recording: Recording | None = None
    types = given or (() if cloud is None else tuple(cloud.types))
    if calibrate is not None:
        recording = Recording.read(Path(calibrate))
        settings, own = _taken(recording, str(calibrate), graph)
        types = given or own
    if not types:
        raise CloudError("no host types to simulate: give a cloud, host types, or a recorded run to calibrate with")
    stated = max_hosts or (0 if cloud is None or given else cloud.max_hosts)
    least = min_hosts or (1 if cloud is None or given else getattr(cloud, "min_hosts", None) or 1)
    if not 1 <= least <= (stated or MOST_HOSTS):
        raise CloudError(f"min_hosts is {least}: at least 1, and at most {stated or MOST_HOSTS} (max_hosts)")
    refuse_partitions(state_partitions)
    refuse_replicas(replicas, most := stated or MOST_HOSTS)
    refuse_rules(scaling, most, types)
    keyed = any(each.kind is Kind.KEYED for each in graph.operators)
    for said in doubts(replicas, types, state_partitions if keyed else None, stated):
        log.warning("%s", said)
    as_spark = (calibrate is not None or not given) if fused is None else fused
    monitor, every = FUSED if as_spark else APART
    with progress_bar(Console()) if show else nullcontext(_unseen) as progress:
        found = compare(
            graph,
            _named(policies),
            types,
            load=load_from(load) if isinstance(load, str | Path) else load,
            seconds=None if limit is None else duration(limit),
            target=target,
            target_latency=None if target_latency is None else duration(target_latency),
            max_hosts=most,
            min_hosts=least,
            monitor=monitor,
            period=every if period is None else pause(period, "plan"),
            seed=seed,
            fused=as_spark,
            settings=settings,
            guards=None if guards is None else load_guards(Path(guards), graph),
            tables=tables,
            consistency=consistency_of(consistency, simulated=True),
            replicas=replicas,
            state_partitions=state_partitions,
            speeds=None if speeds is None else speeds_from(speeds),
            links=None if links is None else links_from(links),
            scaling=scaling,
            progress=progress,
        )
        if recording is None:
            return found
        return replace(found, error=expected_error(recording, str(calibrate), seed, progress))


def expected_error(
    recording: Recording, place: str, seed: int = 1, progress: Callable[[str, int, int], None] = lambda *_: None
) -> ExpectedError:
    """Simulate a recorded run by its own constants and under its own decisions: how far is the simulator off?

    Raises InputError as `calibration_of` does.
    """
    again = replayed(recording, {}, place=place, seed=seed, runs=REPLAYS, progress=progress)
    figures = [again.ways[0].figure(number) for number in range(len(again.ways[0].drifts[0]))]
    return ExpectedError(place, tuple(each for each in figures if each.metric in EXPECTED), again.calibration.told)


def _unseen(what: str, done: int, total: int) -> None:
    """Progress that nobody is shown."""


def _host_types(given: object) -> tuple[HostType, ...]:
    """Host types that were given, one or several. Raises InputError for what is none."""
    several = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for each in several:
        refuse_others("host_types", each, HostType, wanted="a HostType, or several")
    return several


def _named(policies: Policy | Iterable[Policy] | Mapping[str, Policy]) -> dict[str, Policy]:
    """Policies by name; of several with one name the second is called "threshold 2". Raises InputError for what is none."""
    if isinstance(policies, Mapping):
        several = list(policies.values())
    else:
        several = list(policies) if isinstance(policies, Iterable) and not isinstance(policies, str) else [policies]
    for policy in several:
        if wrong := POLICY.unfit(policy):
            raise InputError(f"{policy!r} is no policy, such as Threshold(): {wrong}", ("policies",))
    if isinstance(policies, Mapping):
        return dict(policies)
    found: dict[str, Policy] = {}
    for policy in several:
        name, number = policy.name, 2
        while name in found:
            name, number = f"{policy.name} {number}", number + 1
        found[name] = policy
    return found


def measured(run: Path, graph: Graph) -> tuple[Settings, tuple[HostType, ...]]:
    """Settings and host types calibrated with a recorded run. Raises InputError if it lacks an operator of `graph`."""
    return _taken(Recording.read(run), str(run), graph)


def _taken(recording: Recording, place: str, graph: Graph) -> tuple[Settings, tuple[HostType, ...]]:
    found, _ = calibration_of(recording, place)
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED) and operator.name not in found.settings.services:
            raise InputError(f"{place} is of another dataflow: it has no operator {operator.name!r}")
    return found.settings, found.host_types
