"""Snapshots of the engine's own Redis, taken and restored by commands; `engine.store.snapshots` takes them while it runs."""
