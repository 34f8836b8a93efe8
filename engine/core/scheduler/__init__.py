"""SchedulerCore: durable and volatile timers, claimed, fired and settled."""
