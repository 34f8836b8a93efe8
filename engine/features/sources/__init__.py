"""Sources: rows of a PostgreSQL outbox, and entries of a stream of Redis, NATS or Kafka, become notifications and events, each once.

    outbox, stream, topic --read--> ingester (`engine.features.sources.ingester`) --one Ray call a batch--> an edge --answers--> settle

docs/SOURCES.md describes it. Without the setting `sources` there is no ingester.
"""
