"""Nexmark on PySpark: events, the queries q0 to q22, and their answers computed once more in pandas."""
