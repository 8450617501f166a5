"""A planning round of the policy `threshold` where the tasks of fused stages share the cores of their hosts."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from elastream.model.action import Action, SetParallelism
from elastream.model.metrics import Metric
from elastream.model.units import format_rate
from elastream.model.wording import at_most
from elastream.planning.algorithms import fused
from elastream.planning.algorithms.load import ROUNDS
from elastream.planning.algorithms.measures import capacity, sum_of, unsized
from elastream.planning.algorithms.reach import IN_VAIN, after_trial, within_reach
from elastream.planning.algorithms.seen import Seen
from elastream.planning.policies.threshold_round import Scaled, SizingRound

__all__ = ["FusedRound"]

Said: TypeAlias = Callable[[], str]  # a reason, put into words if it is needed


class FusedRound(SizingRound):
    """Hosts by the cores that the whole dataflow needs; tasks by the slots that they have."""

    def scaled(self) -> Scaled:
        """The plan where stages take turns on the slots."""
        load, observation, policy = self.load, self.observation, self.policy
        base = load.cores(self.rate)
        unknown = unsized(observation) if math.isnan(base) else ()
        need, why = self._need(base)
        there = fused.shared_capacity(observation, (*observation.usable, *observation.coming), equal=self._equal)
        need, self.seen, bound = within_reach(observation, need, there, base, load, self.seen)
        remarks = (f"{IN_VAIN} {format_rate(self.rate)}: {bound}",) if bound else ()
        self.seen, said = after_trial(observation, load, self.seen, self._behind, equal=self._equal)
        if said and not need <= max(there, base / self.most):
            need, remarks = max(there, base / self.most), (*remarks, said)
        elif (trial := self.seen.trial) is not None and trial.time == observation.time and trial.weak:
            remarks = (*remarks, trial.weak)
        seen = self.seen if math.isnan(base) else self.seen.needing(observation.time, (base,), self.settle)
        if load.cold and math.isnan(load.declared) and not load.late:
            # What the first batches work, and how far they lag behind, says nothing of the next ones.
            need = min(need, there)
        more = fused.lease_missing(observation, self.kind, need, why, policy.spare, equal=self._equal)
        remarks = (*remarks, *self._too_few(need))
        hosts = [*self._emptied(more), *(more if more or observation.draining else self._shrink(seen))]
        wider = [action for operator in sorted(observation.context.scalable) for action in self._widened(operator, need)]
        kept = math.nan if math.isnan(need) else max(need, self._kept(seen) / self.most)
        wanted = fused.hosts_for(observation, self.kind, kept, policy.spare, equal=self._equal)
        return Scaled(hosts, wider, seen, self._predicted(hosts, base), unknown, remarks, wanted)

    def _need(self, base: float) -> tuple[float, Said]:
        """(cores of speed 1 that hosts must have, what says why); NaN if unknown. base: cores that the rate works."""
        load, observation, policy = self.load, self.observation, self.policy
        need = base / self.most
        said: list[Said] = [lambda: f"{self._said} needs {base:.3g} cores, to be filled to {self.most:.0%} at most"]
        if (full := load.cores(self.upper)) > need:
            need = full
            said.append(lambda: f"; at most {format_rate(self.upper)} needs {full:.3g}")
        late, each = self._late, self._each(base)
        target = observation.context.target_latency
        within = max(target or 0.0, self.kind.start) if self.catch_up is None else self.catch_up
        if target is not None and within > 0 and 0 < (drained := late * each / within) < math.inf:
            need += drained / self.most
            said.append(lambda: f", and {drained:.3g} to process {late:,.0f} records of late backlog in time")
        settled = observation.since_change >= min(policy.cool_down, ROUNDS * self.pace)
        behind = self._behind
        if (load.late or behind > 1) and settled and not observation.coming and observation.usable:
            there = fused.shared_capacity(observation, observation.usable, equal=self._equal)
            if behind > 1:
                self.seen = replace(self.seen, short=(there, self.forecast.level, observation.time))
                if not there * behind <= need:
                    need = there * behind
                    said = [lambda: f"falling behind for {ROUNDS} rounds, {behind:.3g} times what is processed arrives"]
            elif load.arriving > load.processed:
                short = there * load.arriving / load.processed if load.processed > 0 else there
                least = max(short, there + 1e-6)
                if not least <= need:
                    rates = f"{format_rate(load.arriving)} arrive and {format_rate(load.processed)} are processed"
                    need, said = least, [lambda: f"late, and falling behind: {rates}"]
            elif math.isnan(need):
                need, said = there + 1e-6, [lambda: "late, and the need is unknown: one host more"]
        return need, lambda: "".join(each() for each in said)

    def _each(self, base: float) -> float:
        """Core-seconds of a record that waits: as at the rate that arrives or that is processed, whichever is higher. What
        batches work whatever they hold, `base` has in it: a queue that is left to a trickle does not cost it by the record.
        """
        processed = self.load.processed
        if processed > self.rate > 0 and (worked := self.load.cores(processed)) > 0:
            return worked / processed
        return base / self.rate if self.rate > 0 and base > 0 else self.load.work

    def _too_few(self, need: float) -> tuple[str, ...]:
        """That fewer hosts may be leased than `need` cores take, so that nobody waits for what will not come."""
        most = self.observation.context.max_hosts
        needed = fused.hosts_for(self.observation, self.kind, need, self.policy.spare, equal=self._equal)
        if not needed > most + 1e-9:
            return ()
        for_what = [format_rate(self.rate)] if self.rate > 0 else []
        for_what += [f"{self._late:,.0f} records of late backlog"] if self._late >= 1 else []
        said = f" for {' and '.join(for_what)}" if for_what else ""
        return (f"{at_most(most)}, and {math.ceil(needed - 1e-9)} are needed{said}",)

    @cached_property
    def _late(self) -> float:
        """Records of late backlog when a host that is leased now works."""
        return self.load.late_backlog(self.forecast.level, self.kind.start if not self.observation.coming else 0.0)

    @cached_property
    def _behind(self) -> float:
        """`LoadFigures.behind`; more tasks come before more hosts."""
        return 1.0 if fused.narrow(self.observation, self._slots) else self.load.behind

    @cached_property
    def _equal(self) -> bool:
        return fused.in_equal_parts(self.observation, self._width)

    @cached_property
    def _width(self) -> int:
        """Tasks that the hosts work at once."""
        return self.observation.cores.slots(self.observation.working)[0]

    @property
    def _slots(self) -> int:
        """As many, but no more than the policy may make."""
        return self._width if self.policy.max_parallelism is None else min(self._width, self.policy.max_parallelism)

    def _shrink(self, seen: Seen) -> list[Action]:
        observation, policy, load = self.observation, self.policy, self.load
        young = observation.time - seen.since < self.settle or load.since_change < policy.cool_down
        if (young and not observation.waiting) or load.late or load.behind > 1 or load.queued(self.settle):
            return []
        highest = self._kept(seen)
        if observation.coming:
            return fused.withdraw_surplus(observation, highest, self.most, policy.spare, self.settle, equal=self._equal)
        return fused.drain_surplus(observation, highest, self.most, policy.spare, self.pace, self.settle, equal=self._equal)

    def _kept(self, seen: Seen) -> float:
        """Cores that the hosts left must hold, filled to `most`."""
        load = self.load
        highest = max(each for each in (self._highest(seen), load.used, load.cores(self.later), 0.0) if each == each)
        highest = max(highest, self.most * load.cores(self.upper))
        return max(highest, self.most * (1 + 1e-6) * seen.insufficient(self.observation.time, self.rate))

    def _highest(self, seen: Seen) -> float:
        """Most cores needed in the last `settle` seconds; in the first round, for the highest rate sampled in them."""
        if self.before is not None and seen.needs:
            return float(seen.highest[0])
        return self.load.cores(float(np.max(seen.arriving[seen.times >= self.observation.time - self.settle])))

    def _widened(self, operator: str, need: float) -> list[Action]:
        """The change of the tasks of a fused stage, or of the threads of an operator that waits."""
        observation, load = self.observation, self.load
        observed = observation.operators.value(operator, Metric.PARALLELISM)
        now = observation.composition.parallelism.get(operator, observed)
        if math.isnan(now):
            return []
        if observation.context.graph.by_name[operator].waits:
            return self._threads(operator, now)
        if not (slots := self._slots):
            return []
        _, each = observation.cores.slots(observation.working)
        wanted, hurried = now, load.late or load.behind > 1
        if hurried:
            wanted = max(now, slots)
        elif not math.isnan(need):
            grown = max(1, math.ceil(need / each - 1e-9))
            highest = self._highest(self.seen)
            fits = now if math.isnan(highest) else math.ceil(highest / self.most / each - 1e-9)
            wanted = grown if grown > now else min(now, max(grown, fits, 1))
        wanted = min(wanted, slots)
        if wanted < now <= slots and load.queued(self.settle):
            return []
        if wanted == now:
            return []
        why = f"{self._said} needs {need:.3g} of {capacity(observation, observation.working):.3g} cores"
        why = "all slots while it is late or falls behind" if hurried else why
        return [SetParallelism(operator, int(wanted), why=why)]

    def _threads(self, operator: str, now: float) -> list[Action]:
        """The threads of an operator that waits follow those that are occupied."""
        busy = sum_of(self.observation.operators, Metric.BUSY_CORES, (operator,))
        processed = self.seen.processed[-1]
        if math.isnan(busy) or not processed > 0 or math.isnan(self.rate):
            return []
        occupied = self.rate * busy / processed
        wanted = fused.threads(self.observation, operator, occupied, self.most, self.policy.max_parallelism)
        why = f"{self._said} occupies {occupied:.3g} threads"
        return [SetParallelism(operator, wanted, why=why)] if wanted != now else []
