"""A package: its engines end with its last test (tests/__init__.py)."""
