"""Evaluations of Kumbhare's thesis (2016) on adaptive and resilient stream processing, a folder a chapter."""
