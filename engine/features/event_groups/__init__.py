"""Event groups: what happened to a tenant's users, for consumers that read on where their group stopped."""
