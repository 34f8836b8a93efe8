"""What an operator sees beside the status: the load of the last hour, tenants, topics, quarantined records, slow clients."""
