"""Short-horizon forecasts of load and host speed; empty so far."""
