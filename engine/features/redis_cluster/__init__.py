"""The stores of a Redis Cluster: where they are, and moving one."""
