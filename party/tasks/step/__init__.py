"""One step that all parties take together."""
