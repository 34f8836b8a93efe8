"""What the engine has of one user: shown to an operator, exported, and erased."""
