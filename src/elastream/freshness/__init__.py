"""Bounded runs of a job on leased hosts, asleep between them."""
