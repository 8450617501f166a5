"""OTD and Elastic Allocator on Spark, where their placements are compared."""
