"""What Spark and the machine tell of batches, tasks, traffic and hosts."""
