"""Where state is, on two lines of the live view for each operator that has a ring or copies: who owns how much, and who
keeps copies of it."""

import math

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from elastream.core.metrics import Metric
from elastream.core.observation import Observation
from elastream.core.wording import counted, percent

RINGS = 2
"""Most operators whose rings are shown."""


def rings_of(seen: Observation) -> list[Text]:
    """Lines about each operator that has a ring or copies; of more than `RINGS`, the others are only counted."""
    names, rows = seen.tasks.operator, seen.operators.rows
    tasks = seen.tasks.tasks
    copied = {tasks[row].operator for row in set(seen.standby.task.tolist())}
    operators = [each for each in seen.context.partitions if each in seen.rings or each in copied]
    lines = []
    for operator in operators[:RINGS]:
        mine = names == rows.get(operator, -1)
        kind = "ring" if operator in seen.rings else "state"
        lines.append(_line((f"{kind} {operator}  ", "dim"), _owners(seen, operator, mine)))
        if operator in copied:
            lines.append(_line((f"  copies of {_copies(seen, mine)}", "dim")))
    if len(operators) > RINGS:
        lines.append(Text(f"and {counted(len(operators) - RINGS, 'ring')} more", style="dim"))
    if seen.standby.why:
        lines.append(_line((f"copies: {seen.standby.why}", "yellow")))
    return lines


def _line(*parts: str | tuple[str, str]) -> Text:
    return Text.assemble(*parts, overflow="ellipsis", no_wrap=True)


def _owners(seen: Observation, operator: str, mine: NDArray[np.bool_]) -> str:
    """Each host clockwise, the part of the state that it owns, and who keeps a copy of most of that."""
    hosts, tasks = seen.hosts.ids, seen.tasks
    keepers = _keepers(seen)
    on = {
        hosts[row]: np.flatnonzero(mine & (tasks.host == row)) for row in sorted(set(tasks.host[mine].tolist())) if row >= 0
    }
    order = [*seen.rings[operator].nodes] if operator in seen.rings else []
    said = []
    for host in dict.fromkeys([*(each for each in order if each in on), *on]):
        kept: dict[str, int] = {}
        for task in on[host].tolist():
            for keeper in keepers.get(task, ()):
                kept[keeper] = kept.get(keeper, 0) + 1
        most = max(kept, key=lambda each: kept[each], default="")
        said.append(f"{host} {percent(on[host].size / max(1, int(mine.sum())))}" + (f" (on {most})" if most else ""))
    return "  ".join(said)


def _keepers(seen: Observation) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for task, host in zip(seen.standby.task.tolist(), seen.standby.host.tolist(), strict=True):
        found.setdefault(task, []).append(seen.hosts.ids[host])
    return found


def _copies(seen: Observation, mine: NDArray[np.bool_]) -> str:
    """How many partitions have copies, and how far the last of these is behind."""
    lag = seen.tasks.column(Metric.STANDBY_LAG)[mine]
    have = int(np.isin(np.flatnonzero(mine), seen.standby.task).sum())
    known = lag[~np.isnan(lag)]
    behind = float(known.max()) if known.size else math.nan
    said = f"{have} of {int(mine.sum())} state partitions"
    return said if math.isnan(behind) else f"{said}, {counted(round(behind), 'checkpoint')} behind at most"
