"""Every decision of the engine as plain state machines: same inputs, same outputs. No clock, no socket, no random source."""
