"""Chapter 4 of the thesis, simulated: value against cost, planned for what is there now."""
