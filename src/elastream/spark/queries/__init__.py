"""Running streaming queries: those that a dataflow compiled to, and those of the user's own that are watched."""
