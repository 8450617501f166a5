"""Small scheduling problems: written by hand, and drawn at random for properties."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from elastream.core.hosts import Billing, HostType
from elastream.core.qos import application_value
from elastream.policies.value_cost.problem import Conditions, Deployment, Goal, Host, Option, Problem

HOURLY = Billing(3600.0)
SMALL = HostType("small", cores=1.0, price=0.06, billing=HOURLY)
MEDIUM = HostType("medium", cores=2.0, price=0.12, billing=HOURLY)
LARGE = HostType("large", cores=4.0, price=0.24, speed=2.0, billing=HOURLY)
TYPES = (SMALL, MEDIUM, LARGE)

Variants = Sequence[tuple[float, float, float]]
"""(value, cost, selectivity) of each alternate; none of sources and sinks."""


def problem(
    operators: Mapping[str, Variants],
    edges: Sequence[tuple[str, str]],
    *,
    types: Sequence[HostType] = TYPES,
    goal: Goal | None = None,
    shared: bool = False,
    cores: float = 1.0,
    max_hosts: int = 1_000_000,
) -> Problem:
    """A problem of `operators` in topological order; those without alternates that nothing leads to are sources."""
    names = tuple(operators)
    row = {name: number for number, name in enumerate(names)}
    options = tuple(
        tuple(Option(f"{name}{n}", *each) for n, each in enumerate(variants)) or (Option("", 1.0, 0.0, 1.0),)
        for name, variants in operators.items()
    )
    dynamic = [len(variants) > 1 for variants in operators.values()]
    values = [[value for value, *_ in variants] for variants in operators.values() if len(variants) > 1]
    works = np.array([bool(variants) for variants in operators.values()])
    return Problem(
        operators=names,
        options=options,
        edges=np.array([(row[a], row[b]) for a, b in edges], dtype=np.int64).reshape(-1, 2),
        parts=np.ones(len(edges)),
        sources=np.array([row[name] for name in names if name not in {b for _, b in edges}], dtype=np.int64),
        outputs=np.array([row[name] for name in names if name not in {a for a, _ in edges}], dtype=np.int64),
        record_bytes=np.full(len(names), np.nan),
        placed=works & (not shared),
        fixed=np.zeros(len(names), dtype=np.bool_),
        cores=np.full(len(names), cores),
        memory=np.zeros(len(names)),
        dynamic=np.array(dynamic, dtype=np.bool_),
        types=tuple(types),
        goal=goal or Goal(),
        bounds=(application_value([min(each) for each in values]), application_value([max(each) for each in values])),
        max_hosts=max_hosts,
        shared=shared,
    )


def steady(problem: Problem, *rates: float, queues: Sequence[float] = (), seconds: float = 300.0) -> Conditions:
    """One instant that lasts, with `rates` at the sources."""
    waiting = np.array(queues, dtype=np.float64) if len(queues) else np.zeros(len(problem.operators))
    return Conditions(np.array([rates], dtype=np.float64), waiting, seconds)


def deployed(problem: Problem, hosts: Sequence[tuple[HostType, Mapping[str, int]]], *active: int) -> Deployment:
    """Running hosts h1, h2, ... with instances by operator. active: options, the first of each by default."""
    instances = np.zeros((len(hosts), len(problem.operators)), dtype=np.int64)
    for number, (_, counts) in enumerate(hosts):
        for name, count in counts.items():
            instances[number, problem.row[name]] = count
    return Deployment(
        active or (0,) * len(problem.operators),
        tuple(Host(f"h{n}", kind, kind.speed, 0.0, 0.0) for n, (kind, _) in enumerate(hosts, 1)),
        instances,
    )


def chain(*variants: Variants, **kwargs: object) -> Problem:
    """A source, an operator for each of `variants`, and a sink, one after another."""
    names = ["source", *(f"o{n}" for n in range(len(variants))), "sink"]
    return problem(
        dict(zip(names, [(), *variants, ()], strict=True)),
        list(itertools.pairwise(names)),
        **kwargs,  # type: ignore[arg-type]
    )


@st.composite
def problems(draw: st.DrawFn, *, most: int = 5, shared: bool | None = False) -> Problem:
    """Random dataflows of one source and up to `most` operators, each fed by earlier ones, all ends leading to sinks."""
    count = draw(st.integers(1, most))
    variant = st.tuples(st.floats(0.1, 1.0), st.floats(0.001, 1.0), st.floats(0.2, 2.0))
    operators: dict[str, Variants] = {"source": ()}
    edges: list[tuple[str, str]] = []
    for n in range(count):
        before = list(operators)
        found = draw(st.lists(variant, min_size=1, max_size=3))
        best = max(value for value, *_ in found)
        feeding = draw(st.lists(st.sampled_from(before), min_size=1, max_size=2, unique=True))
        operators[f"o{n}"] = [(value / best, cost, emitted) for value, cost, emitted in found]
        edges += [(each, f"o{n}") for each in feeding]
    for number, name in enumerate([name for name in operators if name not in {a for a, _ in edges}]):
        operators[f"sink{number}"] = ()
        edges.append((name, f"sink{number}"))
    goal = Goal(break_even_best=draw(st.floats(1.0, 50.0)), break_even_worst=draw(st.floats(0.0, 0.9)))
    cores = draw(st.booleans()) if shared is None else shared
    return problem(operators, edges, goal=goal, shared=cores)


@st.composite
def deployments(draw: st.DrawFn, of: Problem) -> Deployment:
    """Random hosts of a problem's types with random instances of its operators, as far as there are cores."""
    kinds = draw(st.lists(st.sampled_from(of.types), min_size=1, max_size=4))
    placed = [name for name, where in zip(of.operators, of.placed.tolist(), strict=True) if where]
    hosts: list[tuple[HostType, dict[str, int]]] = []
    for kind in kinds:
        counts: dict[str, int] = {}
        for _ in range(int(kind.cores) if placed else 0):
            name = draw(st.sampled_from(["", *placed]))
            if name:
                counts[name] = counts.get(name, 0) + 1
        hosts.append((kind, counts))
    return deployed(of, hosts, *(draw(st.integers(0, len(options) - 1)) for options in of.options))
