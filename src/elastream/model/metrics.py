"""Former place of `elastream.core.metrics`; it goes with 0.3."""

import warnings

from elastream.core.metrics import Metric

__all__ = ["Metric"]

warnings.warn(
    "elastream.model.metrics is now elastream.core.metrics; the old name goes with 0.3", DeprecationWarning, stacklevel=2
)
