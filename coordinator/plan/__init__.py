"""The part of a plan that all systems share."""
