"""Attacks on models that all parties train: on every step that is released, and on what a party trained alone."""
