"""Snapshots of the engine's own Redis, taken and restored by commands; `engine.features.snapshots.snapshots` takes them while it runs."""
