"""What guards say of a dynamic element in one round: which of its alternates or branches may run, and their values.

An element is an operator with several alternates, or a choice with several branches (thesis, 3.2).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Standing:
    """What the guards of one element come to.

    allowed: alternates whose guards are active, in their order; empty: what runs stays. values: relative value of each
    alternate, in [0, 1], NaN where unknown. unknown: signals without which guards of it cannot be decided, by alternate.
    texts: conditions of each guarded alternate as they were written; another one has no guard and may not run.
    """

    element: str
    allowed: tuple[str, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """Why nothing is allowed or not all is known; empty where neither."""
        said = [f"the guard of {name} is unknown ({', '.join(missing)})" for name, missing in self.unknown.items()]
        if not self.allowed:
            said.insert(0, f"no guard of {self.element} is active: what runs stays")
        return "; ".join(said)

    def refusal(self, alternate: str) -> str:
        """Why `alternate` may not be switched to, with the text of its guard; empty where it may."""
        if alternate in self.allowed:
            return ""
        if alternate not in self.texts:
            return f"{alternate} has no guard among those of {self.element}: it may not run"
        said = self.why if not self.allowed else f"the guard of {alternate} is not active"
        if alternate in self.unknown and self.allowed:
            said = f"the guard of {alternate} is unknown ({', '.join(self.unknown[alternate])})"
        return f"{said} ({alternate}: {self.texts[alternate]})"

    def best(self, active: str) -> str:
        """The allowed alternate of the highest known value, of equals the active one, then the first; else `active`."""
        known = [name for name in self.allowed if not math.isnan(self.values.get(name, math.nan))]
        if not known:
            return active if active in self.allowed or not self.allowed else self.allowed[0]
        return max(known, key=lambda name: (self.values[name], name == active))
