"""Attacks that measure what a model, or what was released, tells of what it was trained on."""
