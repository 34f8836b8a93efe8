"""The shells that run the core inside Ray actors: shards, schedulers, edges, and the controller above them."""
