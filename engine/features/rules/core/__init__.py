"""Which events become which notifications, for whom, when, and with which text."""
