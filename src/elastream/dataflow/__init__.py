"""Declaration of dataflows: graph, checks, and division into stages."""
