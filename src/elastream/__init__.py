"""Elastream keeps PySpark streaming pipelines inside their service level at the lowest cost."""

__version__ = "0.1.0"
