"""The acts of operators and admins: who did what, when and to what."""
