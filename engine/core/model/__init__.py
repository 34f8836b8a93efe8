"""What every package names: messages, users, slots, durations and placeholders."""
