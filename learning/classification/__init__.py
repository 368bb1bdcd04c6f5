"""Classifiers and regressions: ordinary training, metrics and their picture."""
