"""The pure part: addresses, and the timers of steps."""
