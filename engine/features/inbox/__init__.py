"""A user's inbox: kept messages, and what the user does with them. The kernel keeps them (`engine.core.inbox`)."""
