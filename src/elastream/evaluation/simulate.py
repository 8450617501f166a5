"""`simulate(...)`: policies on a dataflow in simulated time.

A cloud means micro-batches of chained stages, as on Spark; host types mean a queue and instances for every operator.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from elastream.clouds.provider import as_cloud
from elastream.core.fitting import check_replicas, check_rules, doubts
from elastream.core.hosts import HostType
from elastream.core.members import missing_member
from elastream.core.plant import POLICY_MEMBERS, Policy, as_policy
from elastream.dashboard.progress import progress_bar
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.graph import Graph
from elastream.dataflow.operators import Kind
from elastream.documents.registry import POLICY, made, named_in
from elastream.documents.user_code import References
from elastream.errors import CloudError, InputError
from elastream.evaluation.compare import compare
from elastream.evaluation.comparison import Comparison, ExpectedError
from elastream.evaluation.drift import calibration_of, replayed
from elastream.evaluation.trials import MOST_HOSTS
from elastream.recording.recorder import Recording
from elastream.settings import SimulateSettings, keywords_of
from elastream.simulator import Settings

# figures of a recorded run that measure the simulator's error
EXPECTED = ("latency p50", "latency p99", "backlog, mean", "host time")
# number of simulations; their median counts
REPLAYS = 3

log = logging.getLogger(__name__)


@keywords_of(SimulateSettings)
def simulate(
    flow: Dataflow | Graph, policies: Policy | Iterable[Policy] | Mapping[str, Policy], settings: SimulateSettings
) -> Comparison:
    """Simulate `flow` under each of `policies` on one load; compare cost and records in time.

    `policies` is one, several, or a mapping from names. Simulated time begins on Thursday, 1 January 1970, 00:00 UTC.

    Raises:
        InputError: The load has no end and no `limit`.
        CloudError: There are no hosts.
        ElastreamError: Something cannot be simulated.
    """
    graph = flow.graph if isinstance(flow, Dataflow) else flow
    cloud = None if settings.cloud is None else as_cloud(settings.cloud)
    types, calibrate = settings.types, settings.calibrate
    as_spark = (calibrate is not None or not types) if settings.fused is None else settings.fused
    constants: Settings | None = None
    recording: Recording | None = None
    of_cloud = None if types else cloud
    if calibrate is not None:
        recording = Recording.read(Path(calibrate))
        constants, own = _calibrated(recording, str(calibrate), graph)
        types = types or own
    elif of_cloud is not None:
        types = tuple(of_cloud.types)
    if not types:
        raise CloudError("no host types to simulate: give a cloud, host types, or a recorded run to calibrate with")
    if as_spark:
        types = tuple(each.executor for each in types)
    stated = settings.max_hosts or (0 if of_cloud is None else of_cloud.max_hosts)
    least = settings.min_hosts or (1 if of_cloud is None else of_cloud.min_hosts)
    most = stated or MOST_HOSTS
    if not 1 <= least <= most:
        raise CloudError(f"min_hosts is {least}: at least 1, and at most {most} (max_hosts)")
    check_replicas(settings.replicas, most)
    check_rules(settings.scaling, most, types)
    keyed = any(each.kind is Kind.KEYED for each in graph.operators)
    for warning in doubts(settings.replicas, types, settings.state_partitions if keyed else None, stated):
        log.warning("%s", warning)
    settings = replace(settings, host_types=types, max_hosts=most, min_hosts=least, fused=as_spark)
    with progress_bar(Console()) if settings.show else nullcontext(lambda *_: None) as progress:
        comparison = compare(graph, _named(policies), settings, constants=constants, progress=progress)
        if recording is None:
            return comparison
        return replace(comparison, error=expected_error(recording, str(calibrate), settings.seed, progress))


def expected_error(
    recording: Recording, place: str, seed: int = 1, progress: Callable[[str, int, int], None] = lambda *_: None
) -> ExpectedError:
    """Return the simulator's error on a recorded run, under its own constants and decisions."""
    again = replayed(recording, {}, place=place, seed=seed, runs=REPLAYS, progress=progress)
    figures = [again.ways[0].figure(number) for number in range(len(again.ways[0].drifts[0]))]
    return ExpectedError(place, tuple(each for each in figures if each.metric in EXPECTED), again.calibration.separable)


def _named(policies: Policy | Iterable[Policy] | Mapping[str, Policy]) -> dict[str, Policy]:
    """Return policies by name; a repeated name becomes "threshold 2"."""
    if isinstance(policies, Mapping):
        several = list(policies.values())
    else:
        several = list(policies) if isinstance(policies, Iterable) and not isinstance(policies, str) else [policies]
    several = [made(POLICY, *named_in(each, POLICY), References()) if isinstance(each, str) else each for each in several]
    for policy in several:
        if wrong := missing_member(policy, POLICY_MEMBERS):
            raise InputError(f"{policy!r} is not a policy, such as Threshold(): {wrong}", ("policies",))
    several = list(map(as_policy, several))
    if isinstance(policies, Mapping):
        return dict(zip(policies, several, strict=True))
    by_name: dict[str, Policy] = {}
    for policy in several:
        name, number = policy.name, 2
        while name in by_name:
            name, number = f"{policy.name} {number}", number + 1
        by_name[name] = policy
    return by_name


def measured(run: Path, graph: Graph) -> tuple[Settings, tuple[HostType, ...]]:
    """Return settings and host types calibrated with a recorded run.

    Raises:
        InputError: The run lacks an operator of `graph`.
    """
    return _calibrated(Recording.read(run), str(run), graph)


def _calibrated(recording: Recording, place: str, graph: Graph) -> tuple[Settings, tuple[HostType, ...]]:
    calibration, _ = calibration_of(recording, place)
    for operator in graph.operators:
        if operator.kind in (Kind.TRANSFORM, Kind.KEYED) and operator.name not in calibration.settings.services:
            raise InputError(f"{place} is of another dataflow: it has no operator {operator.name!r}")
    return calibration.settings, calibration.host_types
