"""The decisions of an edge that need no I/O: heartbeats, how long the backlog takes, merging of counters."""
