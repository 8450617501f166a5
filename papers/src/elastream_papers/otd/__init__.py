"""OTD: online task deployment, simulated."""
