"""The task of a step that all parties take together."""
