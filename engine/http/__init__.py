"""HTTP without any meaning of its own: bounded bodies, problem details, CORS, the served files, and the description of the interface."""
