"""The evaluation of the thesis's chapter 5: look-ahead against reactive scheduling on a synthetic dataflow."""
