"""Clipped counts of the shard."""
