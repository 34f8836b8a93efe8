"""Signals that only count: merged by name at the edge, added up in storage."""
