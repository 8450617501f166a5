"""Work of nodes at constant rates."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastream_papers.thesis.resilience.reducers.nodes import Node, Replay
from elastream_papers.thesis.resilience.reducers.settings import Protection
from elastream_papers.thesis.resilience.reducers.streams import weighed

if TYPE_CHECKING:
    from elastream_papers.thesis.resilience.reducers.cluster import Reducers

NOTICED = 0.05  # least seconds behind to record
NOTHING = 1e-9  # tuples below this are rounding


def serve(reducers: "Reducers", nodes: Sequence[Node], begin: float, end: float) -> list[tuple[Node, Replay, float]]:
    """Run `nodes` from `begin` to `end`; return finished replays, each with its time."""
    late = reducers.mean_delay
    delivered = reducers.streams.between(begin - late, end - late)
    rooms = {node.name: _room(reducers, node, delivered, end - begin) for node in nodes}
    ended = []
    for node in nodes:
        ended += _replay(reducers, node, rooms, begin, end)
    limits = _limits(reducers, nodes, rooms, begin, end)
    for node, most in zip(nodes, limits, strict=True):
        _work(reducers, node, most, delivered, begin, end)
    return ended


def _room(reducers: "Reducers", node: Node, delivered: Sequence[float], seconds: float) -> float:
    """Return core-seconds left after arrivals and background work."""
    settings = reducers.settings
    kept = weighed(node.fed_weights, delivered)
    received = weighed(node.own_weights, delivered) + kept
    room = node.capacity * seconds
    arriving = received * settings.receive + kept * settings.keep
    # One thread serialises, sends and merges checkpoints.
    background = min(node.debt, node.core * seconds, max(0.0, room - arriving))
    node.debt -= background
    spent = min(room, arriving + background)
    node.debt += arriving + background - spent
    node.busy += spent
    return room - spent


def _replay(
    reducers: "Reducers", node: Node, rooms: dict[str, float], begin: float, end: float
) -> list[tuple[Node, Replay, float]]:
    """Replay a node's takeovers in order, before its queue."""
    ended = []
    cost = reducers.cost * reducers.settings.replay
    whole = rooms[node.name]
    while node.replays and rooms[node.name] > 0:
        replay = node.replays[0]
        tuples = min(replay.left, rooms[node.name] / cost if cost > 0 else math.inf)
        replay.done += tuples
        rooms[node.name] -= tuples * cost
        node.busy += tuples * cost
        if replay.left > NOTHING:
            break
        node.replays.popleft()
        part = 1 - rooms[node.name] / whole if whole > 0 else 1.0
        ended.append((node, replay, begin + part * (end - begin)))
    return ended


def _limits(reducers: "Reducers", nodes: Sequence[Node], rooms: dict[str, float], begin: float, end: float) -> list[float]:
    """Return the most tuples from each node's queue: by cores, threads and the external store."""
    settings, seconds = reducers.settings, end - begin
    cost = reducers.cost + (0.0 if settings.protection is Protection.PEERS else settings.acknowledge)
    most = [0.0 if node.replays else rooms[node.name] / cost if cost > 0 else math.inf for node in nodes]
    if settings.protection is not Protection.EXTERNAL:
        return most
    # Each of a host's threads works on a tuple, then waits for the store.
    most = [
        min(each, settings.threads * seconds / (cost / node.core + settings.access), _waiting(reducers, node, end))
        for node, each in zip(nodes, most, strict=True)
    ]
    asked = 2 * sum(most)
    share = min(1.0, settings.store * seconds / asked) if asked > 0 else 1.0
    return [each * share for each in most]


def _waiting(reducers: "Reducers", node: Node, until: float) -> float:
    late = reducers.mean_delay
    ends = [each.since for each in node.queue[1:]] + [until]
    return sum(
        weighed(segment.weights, reducers.streams.between(segment.since - late, last - late))
        for segment, last in zip(node.queue, ends, strict=True)
    )


def _work(reducers: "Reducers", node: Node, most: float, delivered: Sequence[float], begin: float, end: float) -> None:
    """Process at most `most` queued tuples. delivered: by source, since `begin`."""
    late, streams = reducers.mean_delay, reducers.streams
    lag = begin - node.reached
    left, done = most, 0.0
    while True:
        segment = node.queue[0]
        last = node.queue[1].since if len(node.queue) > 1 else end
        since = segment.since - late
        arrived = delivered if (segment.since, last) == (begin, end) else streams.between(since, last - late)
        here = weighed(segment.weights, arrived)
        if here > left + NOTHING:
            segment.since = streams.when(since, left, segment.weights, last - late) + late
            done += left
            break
        left, done = left - here, done + here
        if len(node.queue) == 1:
            segment.since = end
            break
        node.queue.pop(0)
    if end - node.reached > NOTICED:
        node.behind.append((end, end - node.reached))
    if done > 0:
        cost = reducers.cost
        if reducers.settings.protection is not Protection.PEERS:
            cost += reducers.settings.acknowledge
        node.busy += done * cost
        node.served += done
        waited = (lag + end - node.reached) / 2
        node.lags.append((waited, done))
