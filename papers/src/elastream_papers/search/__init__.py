"""Searches of whole plans: genetic, exhaustive, and by an exact model. Yardsticks of the greedy policies."""
