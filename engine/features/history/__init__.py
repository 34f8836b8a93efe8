"""The history: what has become of every message, event and connection, as rows of a relational database.

    outcomes (`engine.core.wire.outcomes`) --stream--> archivist (`engine.features.history.archivist`) --> tables here

SQLite, one file, or PostgreSQL. Nothing of the engine reads it but `GET /v1/history` and the timelines of messages; analyses read the
table with whatever speaks SQL. docs/HISTORY.md describes it.
"""
