"""Ends of jobs, deaths of actors and nodes, and unhealthy applications of the Ray cluster, as events for the rules.

    `watcher`     the actor; owns what is told
    `endpoints`   of an edge: takes what Ray's Event Export posts
    `core`        what is news, and what it says
    `store`       what both keep in Redis

docs/RAY-EVENTS.md describes it. The rules that come with it are in `engine.features.rules.shipped_rules`.
"""
