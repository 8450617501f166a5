"""Control loop (MAPE-K) and what takes part in it."""
