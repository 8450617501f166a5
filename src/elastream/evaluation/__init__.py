"""Judging policies and runs: comparison in simulation, drift of the simulator, prices, figures and their pages."""
