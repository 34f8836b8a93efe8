"""One user: sequence numbers, pending messages, what each connection was sent, retries, conflation, and the state of the judge."""
