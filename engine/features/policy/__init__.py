"""What users and applications say of when and how users want to be reached: profiles, preferences, and links that unsubscribe."""
