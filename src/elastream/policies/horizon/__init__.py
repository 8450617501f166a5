"""The `horizon` policy: plan the latency budget over scenarios of the load, with settings replayed on its own past."""
