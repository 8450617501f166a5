"""What people read after a run: the self-contained HTML report and the terminal summary."""
