"""The life of one run, from any stage to its end."""
