"""The task of counting tokens: clipped counts of every unit's own tokens."""
