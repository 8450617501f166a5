"""Actions that a policy can put into a plan."""

from elastream.core.action import (
    CancelDrain,
    DrainHost,
    LeaseHost,
    MoveTask,
    ReleaseHost,
    RenewHost,
    Repartition,
    SetKeyTable,
    SetParallelism,
    SetTokens,
    SwitchAlternate,
    SwitchEdge,
    UpdateCode,
)
from elastream.core.task_id import TaskId

__all__ = [
    "CancelDrain",
    "DrainHost",
    "LeaseHost",
    "MoveTask",
    "ReleaseHost",
    "RenewHost",
    "Repartition",
    "SetKeyTable",
    "SetParallelism",
    "SetTokens",
    "SwitchAlternate",
    "SwitchEdge",
    "TaskId",
    "UpdateCode",
]
