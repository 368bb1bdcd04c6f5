"""Comparisons: methods side by side on the same simulated text."""
