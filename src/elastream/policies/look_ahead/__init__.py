"""Look_ahead."""
