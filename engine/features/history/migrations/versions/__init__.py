"""The steps, each a module: `revision` is its name, `down_revision` that of the step before it."""
