"""Former place of `elastream.loads.document`; it goes with 0.3."""

import warnings

from elastream.loads.document import load_from

__all__ = ["load_from"]

warnings.warn(
    "elastream.workload.document is now elastream.loads.document; the old name goes with 0.3",
    DeprecationWarning,
    stacklevel=2,
)
