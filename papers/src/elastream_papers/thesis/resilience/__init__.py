"""Chapter 6 of the thesis: operators with state that balance, scale and recover on a ring of hosts."""
