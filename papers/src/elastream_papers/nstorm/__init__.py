"""N-Storm: schemes of task migration on Spark, and random churn on the same test rig."""
