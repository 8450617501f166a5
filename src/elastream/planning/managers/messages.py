"""What operator managers and their application manager say to each other; see the table in the package."""

from dataclasses import dataclass

__all__ = ["ScaleIn", "ScaleOut", "Verdict"]


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """Operator to application: it would have `replicas` in all, the new one on `host` (empty: anywhere)."""

    application: str
    operator: str
    replicas: int
    host: str


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Operator to application: it would have `replicas` in all, without the one of index `without`."""

    application: str
    operator: str
    replicas: int
    without: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Application to operator: whether it may have `replicas`; `refused` is the reason, empty where it is granted."""

    application: str
    operator: str
    replicas: int
    refused: str = ""
