"""Terminal output about a run: the live view while it lasts, and the summary at its end."""
