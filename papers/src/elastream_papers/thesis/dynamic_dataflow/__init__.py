"""Dynamic dataflows: the demand response application of the thesis, its forecasts chosen by what was learned."""
