"""From the bytes of a publish request to records for the shards: parsed, validated, queued by priority, answered.

Who refuses what under load
---------------------------
A request is refused at the first place on its way that knows that it would wait too long or find no room. Refusing costs less the earlier
it is, and needs knowledge that is only there later; so there are several places, each with a measure. `share` is 50 % for low, 80 % for
normal and 100 % for high priority (`priority_lanes.SHARES`). A 429 has `Retry-After`, from the backlog that was measured.

    where, in order            refuses                                    when                                             answer
    -------------------------  -----------------------------------------  -----------------------------------------------  ----------------
    RequestQueue.check_unread  a publish request, its body unread         parse backlog + lag of the event loop + least    429
      (edge)                                                              busy shard >= publish_delay_target_ms
    RequestQueue.enter         a publish request, its body unparsed       the same delay, or the age of the oldest         429
      (edge)                   (by its least important item)              request that waits >= share of that target
    RequestQueue.enter_step    an event for the rules, before anything    likewise, as normal priority                     429
      (edge)                   it leads to has happened
    RequestQueue.tick          a request that waits for its turn          it has waited publish_delay_target_ms            429
    PendingCalls.begin         any request, before it sends anything      publish_inflight_max records are unanswered, or  429
      (edge)                                                              a tenant's part of publish_inflight_bytes_max
    CircuitBreaker.admits      what needs a shard: immediate messages     breaker_error_ratio of its records have failed:  503; in `results`
      (edge, per shard)        for its users, questions about them        for breaker_open_ms, or until it answers in a    for a part of a
                                                                          new session; then all but breaker_probes         request
    PriorityLanes.closed_ms    a request, before it sends anything        backlog of one of its shards, or the age of the  429
      (edge, per shard or                                                 oldest record that waits >= share of the target
      scheduler)
    PriorityLanes.overdue      a record that was never sent, because      it has waited publish_delay_target_ms            429, in `results`
                               publish_window_items or _bytes are
                               unanswered
    PendingCalls.expire        a record without an answer                 publish_timeout_ms                               503, in `results`
    Admission.takes            a post; a question that changes a user's   pressure level 2: low; level 3: normal;          429, in `results`
      (shard)                  state or needs a page from storage         posts_pending_max, shard_memory_messages_max or
                                                                          shard_memory_bytes_max: all priorities
    SchedulerCore              a timer request                            timer_requests_max wait for storage;             429, in `results`
      (scheduler)                                                         timers_per_user_max of one user
    shard, scheduler           a record whose write got no answer         commit_retry_ms                                  503, in `results`
    Gateway.admit (edge)       a connection, before its upgrade           connections_max are open, or the edge drains     503
                                                                          connections_per_s of the edge, or                429
                                                                          connections_of_user_per_s of the user

- Delays and backlogs of RequestQueue and PriorityLanes are a tenant's own: what waits is taken from the tenants in turns
  (`engine.publish.fair_lane`), so one that sends more than its share of an edge waits, and is refused, for itself.
- The edge alone sees a request before it is parsed, and its own event loop; the shard alone sees the age of its oldest uncommitted post
  and its memory. The levels of pressure (`engine.core.shard.pressure`) begin at pressure_lag_ms and at 50, 70 and 85 % of the limits.
- The edge measures what it has been answering (Little's law, `engine.core.edge.backlog`), so it usually refuses first; the shard's limits
  hold when several edges together send more than each of them expects.
- Questions are requests like any other: acknowledgements, heartbeats and cancels by HTTP of high priority, everything else of normal. A
  shard always answers one that only reads a mailbox in memory. Mailboxes that nobody uses leave memory before level 1 begins, so reading
  about any number of users brings no shard to a level. Acknowledgements by HTTP, heartbeats and erasures free memory or need none: a shard
  refuses these at posts_pending_max only.
- A breaker refuses what its shard would leave unanswered for publish_timeout_ms. Delayed messages need a scheduler and broadcasts their
  log, so they are accepted, as are items for the users of other shards; connections stay.
- What is refused before anything was sent was not accepted. In `results` every item has its own outcome; repeating the whole request
  under the same ids is safe in every case.
"""
