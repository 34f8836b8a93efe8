"""Profiles and preferences of users, links that unsubscribe, and explanations of decisions."""
