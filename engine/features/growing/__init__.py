"""Messages that grow: a publisher appends text or reports progress, devices see it at once, and the end is one ordinary message."""
