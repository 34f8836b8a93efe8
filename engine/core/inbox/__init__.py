"""What a user can still look at of the messages they were sent."""
