"""Carries out the actions of rules: webhooks, and methods of Ray actors. `dispatcher` is the one page with states and crash points."""
