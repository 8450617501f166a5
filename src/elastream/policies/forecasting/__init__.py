"""Forecasts of load, host speed and bandwidth, and learned selection of forecasting methods."""
