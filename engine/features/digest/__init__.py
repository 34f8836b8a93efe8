"""The digest: what a user has missed, in a few lines."""
