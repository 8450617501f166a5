"""A planning round of the policy `threshold` where instances of operators reserve cores."""

import math
from collections.abc import Mapping

from elastream.model.action import Action
from elastream.model.wording import at_most, counted
from elastream.planning.algorithms.apart import CoreNeed, enlarge, lacks, may_reduce, needs_of, reduce
from elastream.planning.algorithms.draft import Draft, observed_instances
from elastream.planning.algorithms.measures import unsized
from elastream.planning.policies.threshold_round import Scaled, SizingRound

__all__ = ["ApartRound"]


class ApartRound(SizingRound):
    """Instances by the need of each operator; hosts by the instances that find no room."""

    def scaled(self) -> Scaled:
        """The plan where each operator has hosts of its own."""
        observation, policy = self.observation, self.policy
        units = [unit for unit in observation.context.units if unit.scalable]
        instances = {unit.name: observed_instances(observation, unit) for unit in units}
        ahead = self.kind.start if not observation.coming else 0.0
        arriving = float(self.seen.arriving[-1])
        needs, unknown = needs_of(observation, units, self.rate, arriving, self.kind.start, ahead)
        if math.isnan(self.rate):
            unknown = unsized(observation)
        upper = self.upper / self.rate if self.rate > 0 else 1.0
        wanted = {
            name: max(need.instances(self.most), CoreNeed(need.cores * upper, need.drain, need.per_instance).instances(1.0))
            for name, need in needs.items()
        }
        if self.load.late and not needs:
            for unit in units:
                if not observation.coming:
                    wanted[unit.name] = instances[unit.name] + 1
        if policy.max_parallelism is not None:
            wanted = {name: min(each, policy.max_parallelism) for name, each in wanted.items()}
        seen = self.seen
        surplus: dict[str, int] = {}
        if needs and len(needs) == len(units):
            seen = seen.needing(observation.time, tuple(needs[unit.name].cores for unit in units), self.settle)
            if observation.time - seen.since >= self.settle and not self.load.late:
                growing = self.later / self.rate if self.rate > 0 else 1.0
                for unit, cores in zip(units, seen.highest, strict=True):
                    least = max(float(cores), needs[unit.name].cores * growing)
                    kept = CoreNeed(least, 0.0, needs[unit.name].per_instance).instances(self.most)
                    surplus[unit.name] = max(0, instances[unit.name] - max(kept, wanted[unit.name]))
        shrinks = bool(surplus) and not observation.coming and observation.since_change >= policy.cool_down
        grown: list[Action] = []
        releases: list[Action] = []
        remarks: tuple[str, ...] = ()
        if lacks(observation, wanted, instances, policy.spare) or (
            shrinks and may_reduce(observation, units, instances, surplus, self.pace)
        ):
            grown, releases, remarks = self._drafted(wanted, needs, surplus, shrinks)
        actions = [*grown, *self._emptied(), *releases]
        total = math.fsum(need.cores for need in needs.values()) if needs else math.nan
        return Scaled(actions, (), seen, self._predicted(actions, total), unknown, remarks)

    def _drafted(
        self, wanted: Mapping[str, int], needs: Mapping[str, CoreNeed], surplus: Mapping[str, int], shrinks: bool
    ) -> tuple[list[Action], list[Action], tuple[str, ...]]:
        """(actions towards `wanted` instances, releases where nothing grows, what no more hosts may be leased for).

        shrinks: whether hosts may go at all.
        """
        policy, draft = self.policy, Draft(self.observation)
        why = {name: self._reason(name, needs.get(name), draft.instances[name]) for name in wanted}
        leased = len(draft.hosts)
        enlarge(draft, wanted, surplus, why, policy.host_type, policy.spare)
        grown = len(draft.hosts) > leased or any(draft.instances[name] > 0 and draft.received for name in wanted)
        releases = reduce(draft, surplus, self.pace, policy.spare) if shrinks and not grown else []
        lacking = {name: wanted[name] - n for name, n in draft.instances.items() if 0 < n < wanted.get(name, 0)}
        if not lacking or draft.may_lease:
            return draft.plan, releases, ()
        short = ", ".join(f"{counted(n, 'instance')} of {name}" for name, n in lacking.items())
        return draft.plan, releases, (f"{at_most(self.observation.context.max_hosts)}, and there is no room for {short}",)

    def _reason(self, name: str, need: CoreNeed | None, now: int) -> str:
        if need is None:
            return "late, and the need is unknown: one instance more"
        late = f", and {need.drain:.3g} to process late backlog in time" if need.drain > 0 else ""
        has = now * need.per_instance
        return f"{self._said} needs {need.cores:.3g} cores of {name}{late}; {has:.3g} are on {counted(now, 'instance')}"
