"""The shard: from a source to units, a record's way into training."""
