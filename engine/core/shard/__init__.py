"""ShardCore: all users of one shard, and what edges and schedulers ask of it."""
