"""`njit` of numba. Without numba (extra `simulate`) the loops run in Python: a replay then takes seconds."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numba import njit as njit
else:
    try:
        from numba import njit
    except ImportError:

        def njit(**_: Any) -> Any:
            return lambda function: function
