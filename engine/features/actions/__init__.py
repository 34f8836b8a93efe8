"""Carries out the actions of rules: webhooks, methods of actors, deployments of Ray Serve. `dispatcher` is the one page with states and
crash points."""
