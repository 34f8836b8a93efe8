"""The data model shared by all packages: messages, names, slots, durations and placeholders."""
