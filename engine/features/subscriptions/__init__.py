"""Subscriptions over HTTP: of the bearer, and by publishers and admins of others."""
