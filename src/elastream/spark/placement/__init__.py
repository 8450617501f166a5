"""Placement of state partitions: the plan, their locations, and their migration."""
