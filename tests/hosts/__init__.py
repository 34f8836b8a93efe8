"""A package: its hosts end with its last test (tests/__init__.py)."""
