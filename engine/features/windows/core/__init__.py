"""Windows as part of a shard."""
