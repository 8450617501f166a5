"""What listens on a port: the arbiter of shared hosts, managers in processes of their own, metrics."""
