"""Hosts of a run on Spark: leased or found in the session, and what is done to them."""
