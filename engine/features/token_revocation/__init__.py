"""Tokens that admins revoke before they expire."""
