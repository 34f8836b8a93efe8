"""Inboxes as part of a shard."""
