"""A package: its Ray cluster ends with its last test (tests/__init__.py)."""
