"""Decisions of guards: allowed alternates or branches of a dynamic element, and their values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

GUARDS = "guards"


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """Result of an element's guards, or of a person's request."""

    element: str
    allowed: tuple[str, ...]  # alternates with active guards. Empty: no change.
    values: Mapping[str, float] = field(default_factory=dict)  # relative value of each, in [0, 1]; NaN: unknown
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # unknown signals by undecided alternate
    texts: Mapping[str, str] = field(default_factory=dict)  # conditions by alternate. One without a guard may not run.
    by: str = GUARDS  # who decided: guards, or a person

    @property
    def why(self) -> str:
        """Return why nothing is allowed or known, or ""."""
        reasons = [f"the guard of {name} is unknown ({', '.join(missing)})" for name, missing in self.unknown.items()]
        if not self.allowed:
            reasons.insert(0, f"no guard of {self.element} is active: the running variant stays")
        return "; ".join(reasons)

    def refusal(self, alternate: str) -> str:
        if alternate in self.allowed:
            return ""
        if self.by != GUARDS:
            return f"{self.element} is to run as {', '.join(self.allowed)}: requested on the {self.by}"
        if alternate not in self.texts:
            return f"{alternate} has no guard among those of {self.element}: it may not run"
        reason = self.why if not self.allowed else f"the guard of {alternate} is not active"
        if alternate in self.unknown and self.allowed:
            reason = f"the guard of {alternate} is unknown ({', '.join(self.unknown[alternate])})"
        return f"{reason} ({alternate}: {self.texts[alternate]})"

    def best(self, active: str) -> str:
        """Return the allowed alternate of highest value; ties: the active, then the first."""
        ranked = [name for name in self.allowed if not math.isnan(self.values.get(name, math.nan))]
        if not ranked:
            return active if active in self.allowed or not self.allowed else self.allowed[0]
        return max(ranked, key=lambda name: (self.values[name], name == active))
