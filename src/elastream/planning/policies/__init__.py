"""The policies, one module each: an observation in, actions out."""
