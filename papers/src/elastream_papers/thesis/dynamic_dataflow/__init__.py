"""Dynamic dataflows: the demand response application of the thesis, with learned selection of forecasting methods."""
