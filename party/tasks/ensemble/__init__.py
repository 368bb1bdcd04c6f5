"""Classifiers on disjoint units, and their votes."""
