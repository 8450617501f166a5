"""What people watch during a run: the live terminal view."""
