"""Traces: spans of the way of a message, exported by OTLP. Off unless `trace_url` is set: then nobody observes anything.

Processes have observers where their messages pass (`engine.gateway.ports.ConnectionObserver`, `engine.store.shard_feature.ShardObserver`,
`engine.store.scheduler_feature.SchedulerObserver`). Without this feature contexts are handed on too (`engine.publish.request_trace`).

A message that is traced has a context in its body (`engine.core.model.trace_context`), wherever it is and however long it waits. So every
process makes its spans by itself, of what it sees, when it is over, and nothing waits for a span or is stored for one:

    process       span         from - to
    edge          publish      the request is read - it is answered; its span id is the parent of all others
    shard         journal      the post arrives - it is durable and answered
    scheduler     schedule     the timer arrives - it is durable and answered
    scheduler     fire         the timer is due - its shard has dealt with it
    shard         judge        the timer arrives at the shard - it took effect, or was decided against, or put off
    edge          send         the message arrives - the bytes are given to the socket (or the answer of a poll)
    edge          acknowledge  it was sent - the client's ACK, its nack, another send, or the end of the connection
    edge          action       one call of an actor, a deployment or a webhook

Sampling. At the head, once, when an edge accepts the item: a publisher's `traceparent` decides, without one `trace_ratio` does. A message
that is not sampled has no context, so no other process does more for it than look at the first bytes of its body. A step that fails, or
takes longer than `trace_slow_ms`, becomes a span in any case, in the trace that the publisher gave or one of its own;
`trace_forced_per_s` of these at most.

Repeats and crashes. A repeated send is a new `send`, a timer that is handed out again a new `judge`, a call that is tried again a new
`action`: spans tell what happened, not what was intended. What a process that dies had not exported is lost, 10 s of spans; the trace then
has a hole, and the message has not. An ACK that reaches another edge than the send did, or comes by HTTP, has no `acknowledge`.

Bounds. Of one item (a message to 1000 users, a broadcast) each process makes `SPANS_OF_ITEM` spans of a kind. Spans wait in one queue of
`QUEUE_MAX`; a thread sends 1024 at once, every 10 s or when so many wait. Beyond the queue, and after the time-out of an export, they are
dropped and counted: a collector that is away for an hour costs that queue, and nothing waits for it. What is remembered until its span is
over (posts, timers, sends) is bounded by `OPEN_MAX`.
"""
