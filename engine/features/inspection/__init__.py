"""What an operator sees beside the status: the load of the last hour, tenants, quarantined records, slow clients."""
