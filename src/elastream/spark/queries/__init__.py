"""The queries that a plant controls: compiled from a dataflow, or the user's own."""
