"""What looks ahead: short-horizon forecasts of load and host speed. Nothing yet."""
