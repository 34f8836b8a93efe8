"""Who sends a request and what they may do: JSON Web Tokens, the keys they are verified with, permissions per topic."""
