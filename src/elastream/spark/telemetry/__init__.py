"""Telemetry of Spark and the machine: batches, tasks, traffic and hosts."""
