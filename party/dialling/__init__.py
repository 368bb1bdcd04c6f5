"""A party that only dials out: how it reaches its coordinator's gate, and keeps a connection there."""
