"""The systems, one folder each; none imports another."""
