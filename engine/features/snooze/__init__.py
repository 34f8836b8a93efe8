"""Snooze: a message leaves the inbox until a time, and comes back unread on all devices."""
