"""Profiles and preferences in JSON."""
