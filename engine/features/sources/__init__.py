"""Sources: rows of a PostgreSQL outbox or entries of a Redis stream become notifications and events, each once.

    outbox, stream --read--> ingester (`engine.features.sources.ingester`) --one Ray call a batch--> an edge --answers--> settle

docs/SOURCES.md describes it. Without the setting `sources` there is no ingester.
"""
