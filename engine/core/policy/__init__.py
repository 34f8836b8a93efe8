"""Whether a user is contacted now, later, in a digest or not at all: preferences, quiet hours, caps, conditions."""
