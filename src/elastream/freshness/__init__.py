"""Bounded runs of a job on leased hosts, planned so that records are committed in time; asleep between them."""
