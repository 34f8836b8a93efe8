"""Records between processes and frames to clients, each with its one codec, and the link that carries batches in order."""
