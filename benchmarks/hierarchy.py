"""Planning time of E2DF's whole hierarchy: up to 1,000 regions of 100 hosts, 200 applications of 10 operators each.

One process plays all managers. Between rounds the plan is carried out and load changes, so that each round has work. Two
minutes on two free cores.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import numpy as np
from _common import Report, main, progress

from elastream.core.hosts import HostType
from elastream.policies.e2df.applications import ApplicationRules
from elastream.policies.e2df.rounds import Hierarchy, HierarchyRules, RoundPlan, begin, planning_round
from elastream.policies.e2df.snapshot import Applications, Instances, LeasedHosts, Operators, Snapshot, identities
from elastream.sharing.rules import ArbiterRules

SIZES = (10, 32, 100, 316, 1000)
HOSTS, APPLICATIONS, OPERATORS = 100, 200, 10
SLOTS = 4
FILLED = (0.5, 1.0)
"""Of a region's slots those that hold a replica, lowest and highest: some regions lack hosts, some have too many."""
PERIOD = 60.0


@dataclass
class World:
    """Leased hosts with replicas, which the managers' plans change."""

    regions: tuple[str, ...]
    operators: Operators
    applications: tuple[str, ...]
    names: list[str]
    region: list[int]
    replicas: Instances
    random: np.random.Generator
    time: float = 0.0

    def snapshot(self) -> Snapshot:
        n = len(self.names)
        used = self.random.beta(2.0, 2.5, len(self.replicas.operator))
        replicas = Instances(self.replicas.operator, self.replicas.index, self.replicas.host, used)
        cpu = np.bincount(replicas.host, used, minlength=n) / SLOTS
        hosts = LeasedHosts(tuple(self.names), np.array(self.region), np.full(n, SLOTS), cpu, np.ones(n, dtype=np.bool_))
        response = self.random.uniform(0.0, 1.0, len(self.applications))
        applications = Applications(self.applications, response, np.full(len(self.applications), 0.9))
        return Snapshot(self.time, self.regions, hosts, replicas, self.operators, applications)

    def carry_out(self, seen: Snapshot, plan: RoundPlan) -> None:
        grants, replicas = plan.grants, seen.instances
        granted, proposals = grants.granted, grants.proposals
        host = replicas.host.copy()
        for shift in plan.shifts:
            host[shift.instance] = shift.host
        gone = proposals.instance[granted & (proposals.change < 0)]
        more = granted & (proposals.change > 0)
        kept = np.setdiff1d(np.arange(len(host)), gone)
        operator = np.concatenate([replicas.operator[kept], proposals.operator[more]])
        index = np.concatenate([replicas.index[kept], proposals.instances[more] - 1])
        at = np.concatenate([host[kept], proposals.host[more]])
        released = {seen.hosts.rows[name] for name in plan.release}
        stays = [row for row in range(len(self.names)) if row not in released]
        new_row = np.full(len(self.names), -1)
        new_row[stays] = np.arange(len(stays))
        self.names = [self.names[row] for row in stays] + [name for name, _ in plan.lease]
        self.region = [self.region[row] for row in stays] + [int(kind[1:]) for _, kind in plan.lease]
        self.replicas = Instances(operator, index, new_row[at], np.zeros(len(at)))
        self.time += PERIOD


def make(
    regions: int, applications: int, rules: HierarchyRules, seed: int = 1
) -> tuple[World, Hierarchy, dict[str, HostType]]:
    random = np.random.default_rng(seed)
    n = regions * HOSTS
    names = tuple(f"app{a}" for a in range(applications))
    operator_names = [f"{name}/op{k}" for name in names for k in range(OPERATORS)]
    operators = Operators(tuple(operator_names), np.repeat(np.arange(applications), OPERATORS), identities(operator_names))
    owner = np.arange(n) % applications
    slots = np.repeat(np.arange(n), SLOTS)
    filled = np.repeat(random.uniform(*FILLED, regions), HOSTS * SLOTS)
    taken = slots[random.random(len(slots)) < filled]
    operator = owner[taken] * OPERATORS + random.integers(0, OPERATORS, len(taken))
    world = World(
        tuple(f"r{r}" for r in range(regions)),
        operators,
        names,
        [f"h{k}" for k in range(n)],
        np.repeat(np.arange(regions), HOSTS).tolist(),
        Instances(operator, np.zeros(len(taken), dtype=np.int64), taken, np.zeros(len(taken))),
        random,
    )
    types = {f"t{r}": HostType(f"t{r}", cores=SLOTS, slots=SLOTS, region=f"r{r}") for r in range(regions)}
    kinds = [f"t{r}" for r in world.region]
    return world, begin(rules, world.snapshot(), kinds, owner, n), types


def measure_size(regions: int, applications: int, rounds: int) -> dict[str, float]:
    rules = HierarchyRules(
        applications=ApplicationRules(tokens=50), infrastructure=ArbiterRules(by_spare=True, max_hosts=1e9)
    )
    world, state, types = make(regions, applications, rules)
    seconds, wall, grants, leases, releases, shifts = [], [], 0, 0, 0, 0
    for number in range(rounds + 1):
        seen = world.snapshot()
        began, began_wall = time.process_time(), time.perf_counter()
        state, plan = planning_round(rules, state, seen, types, hosts_too=True)
        took, took_wall = time.process_time() - began, time.perf_counter() - began_wall
        if number:  # the first round adjusts the random start
            seconds.append(took)
            wall.append(took_wall)
            grants += int(plan.grants.granted.sum())
            leases, releases, shifts = leases + len(plan.lease), releases + len(plan.release), shifts + len(plan.shifts)
        world.carry_out(seen, plan)
    return {
        "regions": regions,
        "hosts": len(world.names),
        "applications": applications,
        "operators": applications * OPERATORS,
        "replicas": len(world.replicas.operator),
        "seconds": statistics.median(seconds),
        "wall seconds": statistics.median(wall),
        "grants a round": grants / rounds,
        "shifts a round": shifts / rounds,
        "leases a round": leases / rounds,
        "releases a round": releases / rounds,
    }


def exponent(rows: list[dict[str, float]]) -> float:
    x, y = (np.log([row[key] for row in rows]) for key in ("regions", "seconds"))
    return float(np.polyfit(x, y, 1)[0])


def measure(arguments: argparse.Namespace) -> Report:
    report = Report()
    rows = []
    for regions in SIZES[:3] if arguments.quick else SIZES:
        rows.append(measure_size(regions, APPLICATIONS, 2 if arguments.quick else 5))
        progress(str(rows[-1]))
    slope = exponent(rows)
    last = rows[-1]
    report.at_most(f"a planning round at {last['regions']:,} regions, s of CPU", last["seconds"], 2.0)
    report.at_most("exponent of its growth with regions", slope, 1.1, "the project's bar: linear, within the error")
    report.figures = {"rounds": rows, "exponent": slope}
    return report


if __name__ == "__main__":
    main("hierarchy", __doc__, measure)
