"""OTD and Elastic Allocator on Spark."""
