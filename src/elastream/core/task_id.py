"""Names of tasks, shared by observations, actions and placements."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """Instance of an operator: on Spark a state partition."""

    operator: str
    index: int

    def __str__(self) -> str:
        return f"{self.operator}#{self.index}"
