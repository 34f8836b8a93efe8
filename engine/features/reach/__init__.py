"""Reach: users who are not looking are told by other channels, step by step, until they have come to the message."""
