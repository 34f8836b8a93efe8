"""A package: its connection to Ray ends with its last test (tests/__init__.py)."""
