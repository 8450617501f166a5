"""E2DF: elasticity on two levels, simulated and on Spark."""
