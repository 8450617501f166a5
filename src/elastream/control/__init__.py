"""Control loop (MAPE-K) and its extensions."""
