"""What is written to storage and read back: journal records, pages, and what can be recovered from damaged ones."""
