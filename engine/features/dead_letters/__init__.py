"""Dead letters: messages that clients refused, for operators to look at, publish again or drop."""
