"""What Ray tells of jobs, actors, nodes and Serve, as events for the rules. No clock, no I/O."""
