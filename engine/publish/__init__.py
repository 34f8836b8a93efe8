"""From the bytes of a publish request to records for the shards: parsed, validated, queued by priority, answered."""
