"""The Spark plant: compiles a dataflow to Structured Streaming, runs it on leased worker processes, observes and acts."""
