"""Questions: a message asks, the first answer wins, and whoever asked gets it once."""
