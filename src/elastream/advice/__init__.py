"""Advice for a job that ran without Elastream, from what Spark has written of it.

No session, no JVM and nothing on the cluster: a log is read, its batches are judged, and a model of the service that they
calibrate says what other numbers of hosts would have done.
"""
