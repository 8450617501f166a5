"""Value-against-cost policies that plan for a forecast (thesis, chapter 5)."""
