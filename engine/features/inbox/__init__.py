"""A user's inbox over HTTP: kept messages, and what the user does with them. The shard has what is kept (`engine.core.inbox`)."""
