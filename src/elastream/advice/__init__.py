"""Advice for a job that ran without Elastream, from Spark's logs alone: no session, no JVM."""
