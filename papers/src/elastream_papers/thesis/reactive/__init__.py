"""Chapter 4 of the thesis, simulated: value against cost, planned for the present load and hosts."""
