"""The systems: one folder each. None imports another."""
