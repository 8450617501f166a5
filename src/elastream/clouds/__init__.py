"""Where hosts come from: one seam, one module a provider."""
