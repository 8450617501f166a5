"""Guards: CEL conditions over signals that select alternates and branches."""
