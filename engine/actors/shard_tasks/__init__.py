"""What a shard does beside its commits, a module for each: every one has the tasks of one idea, and wakes them when the core has work."""
