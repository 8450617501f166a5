"""Elastic Allocator: placement by the needs of tasks, simulated."""
