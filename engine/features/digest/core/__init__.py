"""What a user has missed, told in a few lines: messages grouped by intent, each line with the messages it stands for."""
