"""Durable storage: everything the engine keeps in Redis, and the way it is written."""
