"""Group commit: each step that a group takes before it is appended and after."""
