"""A made-up run for tests of what people look at: a load that rises and falls, hosts that follow it, and why.

It is a toy queue, not a plant: its only purpose is that every kind of entry, unknown values included, occurs in it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from elastream.core.action import CancelDrain, DrainHost, LeaseHost, MoveTask, Outcome, ReleaseHost, Status
from elastream.core.decision import Decision, Proposal, Unknown
from elastream.core.frames import Frame, TaskFrame
from elastream.core.hosts import Billing, HostState, HostType, Lease, total_cost
from elastream.core.metrics import Metric, Rows
from elastream.core.observation import Composition, Context, Observation, Standby
from elastream.core.ring import Ring
from elastream.core.task_id import TaskId
from elastream.dataflow.builder import Dataflow
from elastream.dataflow.endpoints import collect, text_files
from elastream.dataflow.stages import lay_out
from elastream.recording.observer import Ending, Header, Observer, describe_run
from elastream.recording.recorder import Collector, Recording

SMALL = HostType("small", cores=0.5, memory=1500, price=0.02, billing=Billing(60), start=8, stop=3)
PER_HOST = 110.0
SECONDS = 180


def split(line: str) -> list[str]:
    return line.split()


def example_context(target_latency: float | None = 2.0) -> Context:
    flow = Dataflow("word_count")
    lines = flow.source(text_files("books/"), name="lines")
    words = lines.flat_map(split, returns="word string", name="words", max_duration="50ms", cores=0.25)
    words.key_by("word").count(max_duration=1.5).sink(collect("counts"), name="out")
    return Context(lay_out(flow.graph), {"small": SMALL}, target_latency, max_hosts=6, scalable=frozenset({"lines"}))


@dataclass
class _Toy:
    """State of the toy between seconds."""

    leases: dict[str, Lease]
    ended: list[Lease]
    backlog: float = 0.0
    next_host: int = 2
    cooled: float = 0.0


def example_header(*, plant: str = "simulated", target_latency: float | None = 2.0) -> Header:
    return describe_run(
        example_context(target_latency),
        policy="threshold",
        plant=plant,
        started=1_700_000_000.0,
        environment={"machine": "made up", "spark": "none", "hosts": "0.5 of a core each <by quota>"},
    )


def load_at(time: float) -> float:
    return 5 + 545 * max(0.0, 1 - abs(time - 80) / 70)


def example_events(target_latency: float | None = 2.0) -> Iterator[Observation | Decision]:
    """What happens, in order: an observation a second, a decision every two, again with its `actual` two seconds later."""
    return iter(_all_events(target_latency))


@cache
def _all_events(target_latency: float | None) -> tuple[Observation | Decision, ...]:
    return tuple(_generated(target_latency))


def _generated(target_latency: float | None) -> Iterator[Observation | Decision]:
    context = example_context(target_latency)
    first = Lease("h1", SMALL, 0.0).to(HostState.STARTING, 0.2).to(HostState.RUNNING, 4.0)
    toy, open_decision = _Toy({"h1": first}, []), None
    for second in range(1, SECONDS + 1):
        observation = _observe(toy, context, float(second))
        yield observation
        if second % 2 == 0:
            seen = _seen(observation)
            if open_decision is not None and open_decision.predicted:
                yield open_decision.with_actual({name: seen[name] for name in open_decision.predicted})
            open_decision = _decide(toy, float(second), second // 2, seen)
            yield open_decision


def example_ending(status: str = "finished", reason: str = "") -> Ending:
    leases = [lease for event in example_events() if isinstance(event, Observation) for lease in event.leases.values()]
    last = {lease.host: lease for lease in leases}
    ledger = []
    for lease in last.values():
        if lease.state is HostState.RUNNING:
            lease = lease.to(HostState.RELEASING, SECONDS - 1.0)
        ledger.append(lease.to(HostState.RELEASED, lease.history[-1][0] + 2.0))
    facts: dict[str, float | str] = {"batches": 211, "records": 39_810, "counts checked": "equal to a batch count"}
    return Ending(status, SECONDS + 1.0, reason, tuple(ledger), facts)


def play(
    observer: Observer,
    *,
    plant: str = "simulated",
    target_latency: float | None = 2.0,
    end: bool = True,
    directory: str = "",
) -> None:
    """Show the whole run to `observer`."""
    header = example_header(plant=plant, target_latency=target_latency)
    observer.started(replace(header, environment={**header.environment, "directory": directory}) if directory else header)
    for event in example_events(target_latency):
        if isinstance(event, Observation):
            observer.observed(event)
        else:
            observer.decided(event)
    if end:
        observer.ended(example_ending())


def example_recording(*, plant: str = "simulated", target_latency: float | None = 2.0, end: bool = True) -> Recording:
    collector = Collector()
    play(collector, plant=plant, target_latency=target_latency, end=end)
    return collector.recording


def _observe(toy: _Toy, context: Context, now: float) -> Observation:
    for host, lease in list(toy.leases.items()):
        age = now - lease.history[-1][0]
        if lease.state is HostState.REQUESTED:
            toy.leases[host] = lease.to(HostState.STARTING, now - 0.5)
        elif lease.state is HostState.STARTING and age >= 7:
            toy.leases[host] = lease.to(HostState.RUNNING, now)
        elif lease.state is HostState.DRAINING and age >= 3:
            toy.leases[host] = lease.to(HostState.RELEASING, now)
        elif lease.state is HostState.RELEASING and age >= 2:
            toy.ended.append(toy.leases.pop(host).to(HostState.RELEASED, now))
    working = [lease for lease in toy.leases.values() if lease.state in (HostState.RUNNING, HostState.DRAINING)]
    offered, capacity = load_at(now), PER_HOST * len(working)
    processed = min(offered + toy.backlog, capacity)
    toy.backlog = max(0.0, toy.backlog + offered - processed)
    wobble = 0.06 * math.sin(now * 1.7) + 0.03 * math.sin(now * 5.1)
    delay = toy.backlog / capacity if capacity else math.nan
    known = now > 5  # before the first batch is done, nothing is known of latency
    p50 = 0.55 + wobble + delay if known else math.nan
    p99 = 0.95 + 2 * abs(wobble) + 1.9 * delay if known else math.nan
    names = context.graph.order
    tasks = range(8)
    hosts = list(toy.leases)
    usable = [row for row, lease in enumerate(toy.leases.values()) if lease.state is HostState.RUNNING] or [-1]
    return Observation(
        time=now,
        context=context,
        operators=Frame(
            names,
            {
                Metric.ARRIVAL_RATE: [offered, processed, 9 * processed, 9 * processed],
                Metric.PROCESSED_RATE: [processed, processed, 9 * processed, 9 * processed],
                Metric.BACKLOG: [toy.backlog, math.nan, math.nan, math.nan],
                Metric.SERVICE_TIME: [2e-5, 0.0021, 0.0003, math.nan],
                Metric.DURATION_P50: [math.nan, 0.021 + wobble / 9, 0.4 + delay, math.nan] if known else [math.nan] * 4,
                Metric.DURATION_P99: [math.nan, 0.043 + wobble / 5, 0.8 + delay, math.nan] if known else [math.nan] * 4,
                Metric.PARALLELISM: [2.0 * max(1, len(working)), math.nan, 8, 8],
                Metric.BUSY_CORES: [0.01, processed * 0.0021, processed * 0.0027, math.nan],
            },
        ),
        application=Frame(
            (context.graph.name,),
            {
                Metric.ARRIVAL_RATE: [offered],
                Metric.THROUGHPUT: [processed],
                Metric.BACKLOG: [toy.backlog],
                Metric.LATENCY_P50: [p50],
                Metric.LATENCY_P99: [p99],
                Metric.BATCH_DURATION: [0.4 + wobble if known else math.nan],
                Metric.COST: [total_cost([*toy.ended, *toy.leases.values()], now)],
            },
        ),
        hosts=Frame(hosts, {Metric.CPU: [0.7 if row in usable else math.nan for row in range(len(hosts))]}),
        tasks=TaskFrame([2] * 8, tasks, [usable[task % len(usable)] for task in tasks], names),
        leases=dict(toy.leases),
        composition=replace(Composition.default(context.graph), parallelism={"lines": 2 * max(1, len(working))}),
        next_host=toy.next_host,
    )


def _seen(observation: Observation) -> dict[str, float]:
    name = observation.context.graph.name
    return {
        "arrival_rate": observation.application.value(name, Metric.ARRIVAL_RATE),
        "utilisation": observation.application.value(name, Metric.ARRIVAL_RATE)
        / (PER_HOST * max(1, len(observation.usable))),
        "backlog": observation.application.value(name, Metric.BACKLOG),
        "latency_p99": observation.application.value(name, Metric.LATENCY_P99),
        "hosts": float(len(observation.usable)),
    }


def _decide(toy: _Toy, now: float, number: int, seen: dict[str, float]) -> Decision:
    coming = [lease for lease in toy.leases.values() if lease.state in (HostState.REQUESTED, HostState.STARTING)]
    running = [lease for lease in toy.leases.values() if lease.state is HostState.RUNNING]
    decision = Decision(number, now, "threshold", seen, seconds=0.0004)
    if now == 40:
        failed = Outcome(CancelDrain("h9", why="the load rises"), Status.FAILED, "h9 is not leased")
        return _done(decision, (failed,))
    provisioned = len(running) + len(coming)
    fresh = [lease for lease in running if now - 2 < lease.history[-1][0] <= now and lease.host != "h1"]
    if fresh:
        actions = [
            MoveTask(TaskId("count", 2 * n + 1), lease.host, why=f"{lease.host} is ready and holds nothing")
            for n, lease in enumerate(fresh)
        ]
        return _done(decision, tuple(Outcome(each, Status.DONE) for each in actions))
    if seen["arrival_rate"] > 0.7 * PER_HOST * provisioned:
        lease = LeaseHost(f"h{toy.next_host}", "small", why=f"utilisation {seen['utilisation']:.0%} is above 70%")
        if provisioned >= 6:
            refused = (Proposal(lease, "infrastructure", "6 hosts are leased, which is the most allowed"),)
            return replace(decision, proposals=refused, note="6 hosts are leased, which is the most allowed")
        toy.leases[lease.host] = Lease(lease.host, SMALL, now)
        toy.next_host += 1
        toy.cooled = now + 10
        outcome = Outcome(lease, Status.ACCEPTED, "the worker is starting")
        predicted = {"utilisation": seen["arrival_rate"] / (PER_HOST * (provisioned + 1)), "latency_p99": 1.1}
        return replace(_done(decision, (outcome,)), predicted=predicted)
    if now > toy.cooled and len(running) > 1 and seen["arrival_rate"] < 0.45 * PER_HOST * (len(running) - 1):
        leaving = running[-1]
        toy.leases[leaving.host] = leaving.to(HostState.DRAINING, now)
        toy.cooled = now + 8
        drain = DrainHost(leaving.host, why=f"{len(running) - 1} hosts are enough for {seen['arrival_rate']:.0f}/s")
        released = Outcome(ReleaseHost(leaving.host, why="it is paid for nothing"), Status.REFUSED, "it still holds tasks")
        return _done(decision, (Outcome(drain, Status.ACCEPTED, "moving 2 tasks"), released))
    return replace(decision, note="within its thresholds")


def _done(decision: Decision, outcomes: tuple[Outcome, ...]) -> Decision:
    proposals = tuple(Proposal(outcome.action, "infrastructure") for outcome in outcomes)
    return replace(decision, proposals=proposals, outcomes=outcomes)


def lacking_decisions(rounds: int = 5) -> list[Decision]:
    """Rounds a quarter of a minute apart in which a policy did nothing, because it lacked a metric."""
    lacked = Unknown(Metric.PROCESSED_RATE, Rows.OPERATOR, "lines")
    return [
        Decision(n, 15.0 * n, "threshold", unknown=(replace(lacked, seconds=15.0 * (n - 1), rounds=n),))
        for n in range(1, rounds + 1)
    ]


def ringed_events() -> Iterator[Observation | Decision]:
    """The same run with a ring of the hosts that run, at even tokens, and a copy of each state partition on the next."""
    for event in example_events():
        yield _ringed(event) if isinstance(event, Observation) else event


def _ringed(seen: Observation) -> Observation:
    ring, hosts, at = Ring.even(seen.usable or tuple(seen.leases)[:1]), seen.hosts.ids, seen.tasks
    owners = ring.hosts_of(8)
    copies = [(task, ring.successors(owner, 1)[0]) for task, owner in enumerate(owners) if len(ring) > 1]
    lag = float(seen.time % 20 < 2)
    return replace(
        seen,
        context=replace(seen.context, partitions={"count": 8}, replicas=1),
        tasks=TaskFrame(
            at.operator, at.index, [hosts.index(each) for each in owners], seen.context.graph.order,
            {Metric.STANDBY_LAG: [lag if copies else math.nan] * 8},
        ),
        rings={"count": ring},
        standby=Standby(
            [task for task, _ in copies], [hosts.index(host) for _, host in copies], [lag] * len(copies),
            [0.5] * len(copies), why="" if copies else "no other host is there",
        ),
    )  # fmt: skip
