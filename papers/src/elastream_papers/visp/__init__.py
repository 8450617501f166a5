"""VISP: cost-efficient enactment by billing time unit, simulated and on Spark."""
