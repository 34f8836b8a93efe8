"""Tests of everything.

pytest takes a folder for a package only where this file is. Elsewhere a fixture of the scope "package" would end with the session: its
engine would take a tenth of a core from all the tests that come later.
"""
