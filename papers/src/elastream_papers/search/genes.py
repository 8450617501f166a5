"""Plans as chromosomes of two strands (thesis, Fig. 4.4): alternates, and contents of hosts.

A content is a host type with its instances, so that a crossover takes a host whole.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elastream.core.frames import Floats, Integers
from elastream.policies.value_cost.problem import Conditions, Deployment, Problem
from elastream.units import ROUNDING
from elastream_papers.search.offers import HostOffer, numbers_fixed, possible_rates, selected

SPARE = 1.5  # host genes over the costliest alternates' needs: fixes a chromosome's length
FIRST = (0.9, 1.4)  # range of a random plan's cores over its alternates' needs
KEPT = 0.8  # part of the leased hosts in a random plan
SWITCHED = 0.2  # mean number of alternates redrawn by a mutation
CHANGED = (0.5, 0.01)  # mean hosts changed by a mutation: this many or this part, whichever is more
# mean alternates redrawn when a plan is fitted, and its range of cores over the needs: narrow, since surplus is paid for an
# hour
REFITTED, FITTED = 0.5, (0.9, 1.1)
# Frequencies of host mutations. The first two are the thesis's (p. 79); the others skip detours through plans of equal cost
# and lower throughput.
KINDS = {"add": 0.3, "remove": 0.3, "swap": 0.2, "type": 0.1, "drop": 0.1}
JOINED = 0.5  # how often a retyped host takes in another one
NAMES, WEIGHTS = tuple(KINDS), np.array(list(KINDS.values()))


class Genes:
    """Chromosomes of one problem.

    int64 rows: an option per operator, then a content per host, leased ones first.
    """

    def __init__(
        self,
        problem: Problem,
        conditions: Conditions,
        every: Sequence[HostOffer],
        least: float,
        current: Deployment | None = None,
    ) -> None:
        self.problem = problem
        # Instances of each operator, -1 where their number is free.
        self.fixed: Integers = np.array([-1 if each is None else each for each in numbers_fixed(problem, current)])
        self.operators = len(problem.operators)
        self.options: Integers = np.array([len(each) for each in problem.options], dtype=np.int64)
        self.leased = tuple(offer for offer in every if offer.host.name)
        self.new = tuple(offer for offer in every if not offer.host.name)
        self.every = (*self.leased, *self.new)
        self.rows: Integers = np.flatnonzero(problem.placed)
        self._needs = _needs(problem, conditions, least)
        self.positions = self._positions()
        self.length = self.operators + self.positions
        # By content: row of its offer, and instances; content 0 has none.
        self._offer = np.full(1024, -1, dtype=np.int64)
        self._instances: Integers = np.zeros((1024, self.operators), dtype=np.int64)
        self._numbers: dict[tuple[int, bytes], int] = {}
        self._count = 1

    def _positions(self) -> int:
        if not self.new:
            return len(self.leased)
        sizes = [max(offer.speed * offer.type.cores, ROUNDING) for offer in self.new]
        most = self._cores(np.array([int(np.argmax(each)) for each in self._needs]))
        useful = int(np.ceil(SPARE * most.sum() / np.mean(sizes))) + self.operators
        room = max(0, self.problem.max_hosts - len(self.leased))
        return len(self.leased) + min(room, max(useful, self.problem.min_hosts))

    def _cores(self, active: Integers) -> Floats:
        return self._needs[np.arange(self.operators), active]

    def content(self, offer: int, hosted: Integers) -> int:
        """Return the number of a host of `every[offer]` with these instances."""
        key = (offer, hosted.tobytes())
        found = self._numbers.get(key)
        if found is None:
            if self._count == len(self._offer):
                self._offer = np.concatenate((self._offer, np.full_like(self._offer, -1)))
                self._instances = np.concatenate((self._instances, np.zeros_like(self._instances)))
            found = self._numbers[key] = self._count
            self._offer[found], self._instances[found] = offer, hosted
            self._count += 1
        return found

    def hosts(self, chromosomes: Integers) -> tuple[Integers, Integers]:
        """Return offers of hosts (plans, hosts; -1 for none) and instances (plans, hosts, operators)."""
        contents = chromosomes[:, self.operators :]
        return self._offer[contents], self._instances[contents]

    def encoded(self, deployment: Deployment) -> Integers:
        """Return the chromosome of a plan, without empty or unavailable hosts."""
        found = np.zeros(self.length, dtype=np.int64)
        found[: self.operators] = deployment.active
        names = {offer.host.name: row for row, offer in enumerate(self.leased)}
        types = {offer.type: len(self.leased) + row for row, offer in enumerate(self.new)}
        free = len(self.leased)
        for host, hosted in zip(deployment.hosts, deployment.instances, strict=True):
            if not (self.problem.shared or hosted.any()):
                continue
            if host.name in names:
                row = names[host.name]
                found[self.operators + row] = self.content(row, hosted)
            elif not host.name and host.type in types and free < self.positions:
                found[self.operators + free] = self.content(types[host.type], hosted)
                free += 1
        return found

    def decoded(self, chromosome: Integers) -> Deployment:
        """Return the plan of a chromosome."""
        at, hosted = self.hosts(chromosome[None])
        used = at[0] >= 0
        hosts = tuple(self.every[row].host for row in at[0][used].tolist())
        active = tuple(chromosome[: self.operators].tolist())
        return Deployment(active, hosts, hosted[0][used].reshape(-1, self.operators))

    def random(self, chance: np.random.Generator) -> Integers:
        """Return a random plan with about the cores that its alternates need."""
        found = np.zeros(self.length, dtype=np.int64)
        found[: self.operators] = chance.integers(0, self.options)
        wanted = self._cores(found[: self.operators]) * chance.uniform(*FIRST)
        # One type, or all: random mixtures alone would find plans of one type late.
        types = [len(self.leased) + int(chance.integers(len(self.new)))] if self.new and chance.random() < 0.5 else []
        free = [row for row in range(len(self.leased)) if chance.random() < KEPT]
        free += range(len(self.leased), self.positions)
        missing = wanted.copy()
        instances = np.zeros(self.operators, dtype=np.int64)
        for position in free:
            open_for = self._open(missing, instances)
            if not open_for.any():
                break
            offer = position if position < len(self.leased) else self._drawn_offer(types, chance)
            hosted = self._filled(offer, open_for, missing, instances, chance)
            if self.problem.shared or hosted.any():
                found[self.operators + position] = self.content(offer, hosted)
        return found

    def fitted(self, start: Integers, chance: np.random.Generator) -> Integers:
        """Return a plan fitted to its alternates' needs, at times with other alternates."""
        found, problem = start.copy(), self.problem
        dynamic = np.flatnonzero(self.options > 1)
        for row in dynamic[chance.random(dynamic.size) * dynamic.size < REFITTED].tolist():
            found[row] = chance.integers(0, self.options[row])
        if problem.shared:
            return found
        offers, hosted = (each[0].copy() for each in self.hosts(found[None]))
        speeds = np.array([*(each.speed for each in self.every), 0.0])
        missing = (
            self._cores(found[: self.operators]) * chance.uniform(*FITTED) - speeds[offers] @ hosted * problem.per_instance
        )
        instances = hosted.sum(axis=0)
        for position in chance.permutation(np.flatnonzero(offers >= 0)).tolist():
            each = speeds[offers[position]] * problem.per_instance
            spare = np.minimum(hosted[position], np.floor(-missing / np.maximum(each, ROUNDING) + ROUNDING)).astype(
                np.int64
            )
            spare = np.where(self.fixed < 0, np.clip(spare, 0, np.maximum(instances - 1, 0)), 0)
            hosted[position] -= spare
            instances -= spare
            missing += spare * each
        used = chance.permutation(np.flatnonzero(offers >= 0)).tolist()
        free = [position for position in range(self.positions) if offers[position] < 0]
        types = [len(self.leased) + int(chance.integers(len(self.new)))] if self.new and chance.random() < 0.5 else []
        for position in [*used, *free]:
            open_for = self._open(missing, instances)
            if open_for.any() and (self.new or position < len(self.leased)):
                if offers[position] < 0:
                    offers[position] = position if position < len(self.leased) else self._drawn_offer(types, chance)
                hosted[position] = self._filled(
                    int(offers[position]), open_for, missing, instances, chance, hosted[position]
                )
            content = self.content(int(offers[position]), hosted[position]) if hosted[position].any() else 0
            found[self.operators + position] = content
        return found

    def _drawn_offer(self, types: Sequence[int], chance: np.random.Generator) -> int:
        return types[0] if types else len(self.leased) + int(chance.integers(len(self.new)))

    def _open(self, missing: Floats, instances: Integers) -> NDArray[np.bool_]:
        """Return the operators that need more cores or an instance."""
        if self.problem.shared:
            return np.full(self.operators, bool(missing.sum() > ROUNDING or not instances.any()))
        found = np.where(self.fixed >= 0, instances < self.fixed, (missing > ROUNDING) | (instances == 0))
        return found & self.problem.placed

    def _filled(
        self,
        offer: int,
        open_for: NDArray[np.bool_],
        missing: Floats,
        instances: Integers,
        chance: np.random.Generator,
        begun: Integers | None = None,
    ) -> Integers:
        """Fill one host with instances of operators in need; updates `missing` and `instances`."""
        hosted = np.zeros(self.operators, dtype=np.int64) if begun is None else begun.copy()
        each, problem = self.every[offer], self.problem
        if problem.shared:
            missing -= missing / max(float(missing.sum()), ROUNDING) * each.speed * each.type.cores
            instances += 1
            return hosted
        while True:
            row = self._drawn_operator(offer, hosted, np.where(open_for, np.maximum(missing, ROUNDING), 0.0), chance)
            if row is None or each.speed <= 0:
                return hosted
            hosted[row] += 1
            instances[row] += 1
            missing[row] -= each.speed * problem.per_instance[row]
            open_for = self._open(missing, instances)

    def _drawn_operator(
        self, offer: int, hosted: Integers, weights: Floats | Integers, chance: np.random.Generator
    ) -> int | None:
        """Draw an operator by `weights` that fits beside `held`, or None."""
        each, problem = self.every[offer], self.problem
        cores = each.type.cores - float(hosted @ problem.cores)
        memory = each.type.memory - float(hosted @ problem.memory)
        room = problem.placed & (problem.cores <= cores + ROUNDING) & (problem.memory <= memory + ROUNDING)
        return _drawn(weights * room, chance)

    def mutate(self, chromosomes: Integers, chance: np.random.Generator) -> None:
        """Mutate each row in place: some alternates, and some hosts' contents."""
        count = len(chromosomes)
        dynamic = np.flatnonzero(self.options > 1)
        if dynamic.size:
            switch = chance.random((count, dynamic.size)) < SWITCHED / dynamic.size
            drawn = chance.integers(0, self.options[dynamic], (count, dynamic.size))
            chromosomes[:, dynamic] = np.where(switch, drawn, chromosomes[:, dynamic])
        if not self.positions:
            return
        contents = chromosomes[:, self.operators :]
        used = (contents > 0).sum(axis=1)
        for row, number in enumerate(chance.poisson(np.maximum(CHANGED[0], CHANGED[1] * used)).tolist()):
            hosted = np.flatnonzero(contents[row])
            for _ in range(number):
                # All unused genes together are as likely as one used gene, because most genes are unused.
                at = int(chance.integers(len(hosted) + max(1, len(hosted) // 8))) if len(hosted) else 0
                position = int(hosted[at]) if at < len(hosted) else int(chance.integers(self.positions))
                contents[row, position] = self._changed(position, contents[row], chance)

    def _changed(self, position: int, contents: Integers, chance: np.random.Generator) -> int:
        number = int(contents[position])
        own = position if position < len(self.leased) else None
        if not number:
            return self._opened(own, contents, chance)
        offer, hosted = int(self._offer[number]), self._instances[number].copy()
        if not hosted.any() and not self.problem.shared:
            return self._opened(own, contents, chance) if chance.random() < 0.5 else 0
        kind = NAMES[_drawn(WEIGHTS, chance) or 0]
        if self.problem.shared and kind in ("add", "remove", "swap"):
            kind = "drop" if chance.random() < 0.5 else "type"
        if kind == "drop":
            return 0
        if kind == "type":
            return number if own is not None else self._retyped(position, hosted, contents, chance)
        if kind in ("remove", "swap"):
            hosted[_drawn(hosted, chance)] -= 1
        if kind in ("add", "swap"):
            row = self._drawn_operator(offer, hosted, np.ones(self.operators), chance)
            if row is not None:
                hosted[row] += 1
        return self.content(offer, hosted) if hosted.any() else 0

    def _opened(self, own: int | None, contents: Integers, chance: np.random.Generator) -> int:
        """Return a content for an empty gene: another host's, or one random instance."""
        others = contents[len(self.leased) :]
        others = others[others > 0]
        if own is None and len(others) and chance.random() < 0.5:
            return int(others[chance.integers(len(others))])
        if own is None and not self.new:
            return 0
        offer = self._drawn_offer([], chance) if own is None else own
        hosted = np.zeros(self.operators, dtype=np.int64)
        if not self.problem.shared:
            row = self._drawn_operator(offer, hosted, np.ones(self.operators), chance)
            if row is None:
                return 0
            hosted[row] = 1
        return self.content(offer, hosted)

    def _retyped(self, position: int, hosted: Integers, contents: Integers, chance: np.random.Generator) -> int:
        """Move the instances to a host of a random type, at times with another host's."""
        others = [n for n in np.flatnonzero(contents[len(self.leased) :]) + len(self.leased) if n != position]
        if others and chance.random() < JOINED:
            other = others[chance.integers(len(others))]
            hosted = hosted + self._instances[contents[other]]
            contents[other] = 0
        offer, fitting, left = self._with_room(hosted, chance)
        free = (number for number in range(len(self.leased), self.positions) if not contents[number] and number != position)
        while left.any() and (gene := next(free, None)) is not None:
            another, its, left = self._with_room(left, chance)
            if not its.any():
                break
            contents[gene] = self.content(another, its)
        return self.content(offer, fitting) if self.problem.shared or fitting.any() else 0

    def _with_room(self, hosted: Integers, chance: np.random.Generator) -> tuple[int, Integers, Integers]:
        offer = self._drawn_offer([], chance)
        fitting, left = np.zeros(self.operators, dtype=np.int64), hosted.copy()
        while (row := self._drawn_operator(offer, fitting, left, chance)) is not None:
            fitting[row] += 1
            left[row] -= 1
        return offer, fitting, left


def _drawn(weights: Floats | Integers, chance: np.random.Generator) -> int | None:
    upto = weights.cumsum()
    return int(np.searchsorted(upto, chance.random() * upto[-1], side="right")) if upto[-1] > 0 else None


def _needs(problem: Problem, conditions: Conditions, least: float) -> Floats:
    """Return cores (speed 1) by operator and option for `least` of the possible rate; shape (operators, options)."""
    width = max(len(each) for each in problem.options)
    most = np.array([max(option.selectivity for option in each) for each in problem.options])
    rates = possible_rates(problem, conditions, most[:, None])
    counts = np.array([[len(each)] for each in problem.options])
    choices = np.minimum(np.arange(width)[None, :], counts - 1)
    costs, _ = selected(problem, choices)
    found: Floats = rates * costs * least * (problem.placed[:, None] | problem.shared)
    return found
