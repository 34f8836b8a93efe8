"""Features around the kernel, a folder each. `engine.routes` lists those of an edge."""
