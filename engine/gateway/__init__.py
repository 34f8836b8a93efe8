"""The state of one edge: its connections, and the requests it has sent to shards and schedulers."""
