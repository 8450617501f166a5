"""Evaluation of policies and runs: comparisons in simulation, simulator drift, prices, figures and pages."""
