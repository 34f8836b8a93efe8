"""A package: its Chromium ends with its last test (tests/__init__.py)."""
