"""Rules: which events become which notifications, for whom, when, and with which text; their versions, and dry runs."""
