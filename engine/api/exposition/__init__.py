"""`GET /metrics`: the figures of the whole engine, from any edge, for Prometheus and whoever reads its formats.

    shard, scheduler, edge, actor of a feature --stats()--> controller --status--> edge --> families --> text

The controller asks every actor for plain numbers every `health_ms`, and when a scrape comes and those are older than a moment; an edge
takes them from there. So it does not matter which edge a scrape reaches, also when several share a port or are on different machines. The
edge's own numbers are those of the moment, all others at most a second or two old. An actor that does not answer for a quarter of
`health_timeout_ms` has `engine_up` 0 and no other figures, until it answers again: old numbers would look like a standstill. While the
controller does not answer, `engine_up{role="controller"}` is 0 and the edge serves its own numbers only. No scrape waits for an actor: the
controller answers within half a second, or the edge gives up after five.

`catalogue` has every metric of the kernel by name, the module `figures` of a feature those of the feature; docs/METRICS.md lists them.
"""
