"""The task of counting: clipped pair counts of the shard."""
