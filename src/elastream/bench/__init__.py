"""Benchmarks that a user runs on a cluster of their own: `elastream bench`. The extra `bench` installs what they need."""
