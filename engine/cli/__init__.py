"""The `engine` command: start and stop an engine, publish, listen, and check rules."""
