"""Durable storage in Redis: key names, Lua scripts, journal, pages, streams and timers."""
