"""The simulated plant: the same Plant as Spark, in simulated time."""
