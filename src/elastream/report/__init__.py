"""Report of a run: its figures, and the HTML page."""
