"""Aggregation windows: messages of one collapse key become one notification, and those of the digest a summary."""
