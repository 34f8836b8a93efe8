"""Every metric of the kernel: its name, type, help and labels, and which number of which actor it is.

Names follow the conventions of Prometheus: base units, `_total` at the end of counters (added by the formats, and left out here). A
metric of the kernel is added here and nowhere else, one of a feature in its module `figures`; `python docs/metrics.py` makes
docs/METRICS.md of them. The actor reports a number under the `field` given here.

An actor's row of the status has plain numbers, `row[field]`. Numbers with labels of their own are in `row["figures"][field]`, each as
(label, ..., number), without the label of the actor itself, which comes first in `labels`. Histograms are in `row[field]` as [upper bound
in ms, number] in growing order, with their sum in `row[field + "_sum_ms"]` and exemplars in `row["exemplars"][field]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

MetricKind = Literal["counter", "gauge", "histogram", "info"]


class Family(NamedTuple):
    """One metric."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


class Figure(NamedTuple):
    """A metric that is a number of an actor's row; `factor` makes base units of it."""

    field: str
    family: Family
    factor: float = 1.0


class FeatureMetrics(NamedTuple):
    """The metrics of a feature.

    Attributes:
        title: of their section in docs/METRICS.md.
        role: of the actors that report them. An edge does so in `figures`, an actor of the feature as plain numbers; "": as plain numbers
            of actors of any role.
        figures: their first label names the actor; of those of any role, the first two do (`ANY_ACTOR`).
        named_by: the member of the row that has the value of this label; rows without it are left out.
    """

    title: str
    role: str
    figures: tuple[Figure, ...]
    named_by: str = "index"


def gauge(field: str, name: str, text: str, *labels: str, factor: float = 1.0) -> Figure:
    """A number that falls, too."""
    return Figure(field, Family(name, "gauge", text, labels), factor)


def counter(field: str, name: str, text: str, *labels: str, factor: float = 1.0) -> Figure:
    """A number that only grows while its process lives."""
    return Figure(field, Family(name, "counter", text, labels), factor)


def _histogram(field: str, name: str, text: str, *labels: str) -> Figure:
    return Figure(field, Family(name, "histogram", text, labels), 1e-3)


ANY_ACTOR: Final = ("role", "index")
"""The labels of a number that actors of any role report."""

BREAKER_STATES: Final = "0 closed, 1 half-open, 2 open"

UP: Final = Family(
    "engine_up", "gauge", "1 while the actor answers; what does not answer has no other metrics. The controller is among them.", ANY_ACTOR
)
INFO: Final = Family("engine", "info", "The version.", ("version",))

PROCESS: Final = (
    gauge("ready", "engine_ready", "1 while the actor has started and serves.", *ANY_ACTOR),
    counter("cpu_s", "engine_cpu_seconds", "CPU time of the actor's process.", *ANY_ACTOR),
    gauge("cpu_pct", "engine_cpu_ratio", "Share of one core the actor's process uses.", *ANY_ACTOR, factor=0.01),
    gauge(
        "queued_pct",
        "engine_queued_ratio",
        "Share of the time in which the actor was ready to run and had no core.",
        *ANY_ACTOR,
        factor=0.01,
    ),
    gauge("rss_bytes", "engine_resident_memory_bytes", "Resident memory of the actor's process.", *ANY_ACTOR),
    gauge("started_ms", "engine_start_time_seconds", "When the actor's process started, since the epoch.", *ANY_ACTOR, factor=1e-3),
    counter("restarts", "engine_restarts", "Times the actor's process was replaced.", *ANY_ACTOR),
    gauge("storage", "engine_storage_up", "1 while durable storage answers this actor.", *ANY_ACTOR),
)
"""Of every actor."""

SHARD: Final = (
    gauge("users", "engine_mailboxes", "Mailboxes in memory.", "shard"),
    gauge("connections", "engine_attached_connections", "Connections attached to this shard.", "shard"),
    gauge("pending", "engine_pending_messages", "Messages that await their acknowledgement.", "shard"),
    gauge("posts_waiting", "engine_posts_waiting", "Messages that wait for the next group commit.", "shard"),
    gauge("pages_waiting", "engine_pages_waiting", "Users whose page is being read, and for which requests wait.", "shard"),
    gauge("lag_ms", "engine_journal_lag_seconds", "Age of the oldest message that awaits its commit.", "shard", factor=1e-3),
    gauge("epoch", "engine_shard_epoch", "Fencing epoch; it grows whenever the shard is taken over.", "shard"),
    gauge("pressure", "engine_pressure_level", "How hard the shard is pressed: 0 calm, 3 only high priority is taken.", "shard"),
    gauge("memory_bytes", "engine_shard_memory_bytes", "What mailboxes and waiting posts take in memory.", "shard"),
    gauge("held", "engine_held_mailboxes", "Mailboxes whose next message is of low priority and waits for the pressure to end.", "shard"),
    counter("refused_high", "engine_refused_high", "High-priority posts refused at a limit.", "shard"),
    counter("refused_normal", "engine_refused_normal", "Normal-priority posts refused under pressure.", "shard"),
    counter("refused_low", "engine_refused_low", "Low-priority posts refused under pressure.", "shard"),
    counter("refused_questions", "engine_refused_questions", "Questions about users refused under pressure.", "shard"),
    counter("conflated", "engine_conflated", "Messages that a newer one of their collapse key stands for.", "shard"),
    counter("suppressed", "engine_suppressed", "Messages that a wish of the user or a limit kept back for good.", "shard"),
    counter("deferred", "engine_deferred", "Messages, timers and windows that quiet hours put off.", "shard"),
    counter("digested", "engine_digested", "Messages that count in a user's digest.", "shard"),
    counter("inboxed", "engine_inboxed", "Messages that went into the inbox only, as their users want.", "shard"),
    counter("step_skipped", "engine_steps_skipped", "Steps that were not needed, or not wanted, when they were due.", "shard"),
    counter("low_spilled", "engine_low_spilled", "Low-priority messages that left memory for the offline streams.", "shard"),
    counter("published", "engine_published", "Messages journalled.", "shard"),
    counter("duplicates", "engine_duplicates", "Publishes answered with an earlier result.", "shard"),
    counter("delivered", "engine_delivered", "First sends of messages to connections.", "shard"),
    counter("acknowledged", "engine_acknowledged", "Messages acknowledged by their users.", "shard"),
    gauge("suspects", "engine_suspect_users", "Users whose last connection ended abnormally, and whose clients may come back.", "shard"),
    counter("retried", "engine_retried", "Messages sent again for want of an acknowledgement.", "shard"),
    counter("exhausted", "engine_exhausted", "Messages that used up their tries on a connection, or expired before.", "shard"),
    counter("expired", "engine_expired", "Messages whose time to live ended first.", "shard"),
    counter("trimmed", "engine_trimmed", "Messages dropped by the per-user limit, announced as gaps.", "shard"),
    counter("dead_lettered", "engine_dead_lettered", "Messages that went to the dead-letter stream.", "shard"),
    gauge("broadcasts", "engine_broadcast_log_entries", "Broadcasts in the log, as this shard mirrors it.", "shard"),
    counter("adopted", "engine_broadcasts_adopted", "Broadcasts numbered and journalled, once per mailbox.", "shard"),
    counter("commits", "engine_commits", "Group commits to the journal.", "shard"),
    counter("quarantined", "engine_quarantined_records", "Stored records that could not be read.", "shard"),
)
TENANT: Final = (
    counter("sent", "engine_tenant_sent", "First sends of messages to connections.", "shard", "tenant", "transport"),
    counter(
        "repeated", "engine_tenant_repeated", "Messages sent again for want of an acknowledgement.", "shard", "tenant", "transport"
    ),
    counter("acknowledged", "engine_tenant_acknowledged", "Messages acknowledged by their users.", "shard", "tenant"),
    counter("expired", "engine_tenant_expired", "Messages whose time to live ended first.", "shard", "tenant"),
    counter("trimmed", "engine_tenant_trimmed", "Messages dropped by the per-user limit, announced as gaps.", "shard", "tenant"),
    counter("dead_lettered", "engine_tenant_dead_lettered", "Messages that went to the dead-letter stream.", "shard", "tenant"),
    counter("suppressed", "engine_tenant_suppressed", "Messages that a wish of the user or a limit kept back.", "shard", "tenant"),
    counter("deferred", "engine_tenant_deferred", "Messages, timers and windows that quiet hours put off.", "shard", "tenant"),
    counter("digested", "engine_tenant_digested", "Messages that count in a user's digest.", "shard", "tenant"),
    counter("inboxed", "engine_tenant_inboxed", "Messages that went into the inbox only, as their users want.", "shard", "tenant"),
    counter("step_skipped", "engine_tenant_steps_skipped", "Steps that were not needed, or not wanted.", "shard", "tenant"),
    counter(
        "decisions",
        "engine_decisions",
        "Messages with a category, or of users with preferences, by what became of them: delivered, suppressed, deferred, digested, "
        "inboxed.",
        "shard", "decision", "reason", "category",
    ),
)  # fmt: skip
"""Of shards, with labels beside the shard's."""

SHARD_LATENCIES: Final = (
    _histogram("latency", "engine_delivery_seconds", "From acceptance to the acknowledgement; includes a user's absence.", "shard"),
    _histogram("send_latency", "engine_first_send_seconds", "From acceptance to the first send, on connections open at the time.", "shard"),
    _histogram("ack_latency", "engine_ack_seconds", "From the first send on a connection to its acknowledgement, per message.", "shard"),
    _histogram(
        "read_latency",
        "engine_read_seconds",
        "From the first send to the time of the ACK by its client's clock, where it has one.",
        "shard",
    ),
    _histogram(
        "clock_skew", "engine_client_clock_skew_seconds", "By how much clients' clocks are wrong at least, per ACK with a time.", "shard"
    ),
)
SCHEDULER: Final = (
    gauge("armed", "engine_timers_armed", "Durable timers in storage.", "scheduler"),
    gauge("volatile", "engine_timers_volatile", "Retry and window timers in memory.", "scheduler"),
    gauge("loaded", "engine_timers_loaded", "Durable timers in memory, because they are due soon or were sent.", "scheduler"),
    gauge("requests_waiting", "engine_timer_requests_waiting", "Requests about timers that wait for storage.", "scheduler"),
    gauge("removals_waiting", "engine_timer_removals_waiting", "Timers that took effect and are still to be removed.", "scheduler"),
    gauge("lag_ms", "engine_timer_lag_seconds", "How long the oldest due timer has waited.", "scheduler", factor=1e-3),
    counter("fired", "engine_timers_fired", "Durable timers handed to their shard.", "scheduler"),
    counter("refired", "engine_timers_refired", "Durable timers handed out again for want of a confirmation.", "scheduler"),
    counter("failed", "engine_timer_failures", "Hand-outs of durable timers that failed.", "scheduler"),
    counter(
        "compensated",
        "engine_timers_compensated",
        "Durable timers that failed too often and went to the compensation batch.",
        "scheduler",
    ),
    counter("postponed", "engine_timers_postponed", "Durable timers whose shard wanted them again later.", "scheduler"),
    gauge("degraded", "engine_timers_degraded", "Durable timers that wait for a compensation batch.", "scheduler"),
    counter("quarantined", "engine_quarantined_timers", "Stored timers that could not be read.", "scheduler"),
)
SCHEDULER_LATENCIES: Final = (
    _histogram("lateness", "engine_timer_lateness_seconds", "From due to handed out, per durable timer.", "scheduler"),
)
EDGE: Final = (
    gauge("queued", "engine_edge_publish_requests_waiting", "Publish requests that wait to be parsed.", "edge"),
    gauge("awaiting", "engine_edge_records_awaiting", "Records sent to shards and schedulers that are not answered.", "edge"),
    gauge("delay_ms", "engine_edge_publish_delay_seconds", "How long a publish request waits now.", "edge", factor=1e-3),
    gauge("backlog", "engine_edge_slow_connections", "Connections whose client has not taken all that was sent to it.", "edge"),
)
EDGE_LABELLED: Final = (
    counter(
        "published", "engine_edge_published", "Items published through this edge, by what became of them.", "edge", "tenant", "status"
    ),
    counter("cancelled", "engine_edge_cancelled", "Scheduled notifications cancelled through this edge.", "edge", "tenant"),
    counter("refused", "engine_edge_refused", "Requests and upgrades this edge refused, by HTTP status.", "edge", "code"),
    counter("shed", "engine_edge_shed", "Publish requests refused unparsed under load, by priority.", "edge", "priority"),
    gauge("connections", "engine_edge_connections", "Open connections of this edge.", "edge", "transport"),
    counter("closes", "engine_edge_closes", "Connections of this edge that ended, by close code; 0 where there is none.", "edge", "code"),
    gauge("links", "engine_edge_links", "Open links of this edge, by what carries them.", "edge", "carrier"),
    gauge(
        "breakers", "engine_edge_breaker_state",
        f"Circuit breaker of this edge for a shard: {BREAKER_STATES}: it is not asked.", "edge", "shard",
    ),
    counter("broadcasts", "engine_edge_broadcasts", "Broadcasts this edge has put into the log.", "edge"),
    counter("frames_received", "engine_edge_frames_received", "WebSocket frames received from clients.", "edge"),
    counter("frames_sent", "engine_edge_frames_sent", "WebSocket frames, events and poll answers sent to clients.", "edge"),
    counter("messages_sent", "engine_edge_messages_sent", "Messages sent to clients, repeats included.", "edge"),
    counter("acks", "engine_edge_acks", "Acknowledgements received, each for one or many messages.", "edge"),
    counter("retries_spared", "engine_edge_retries_spared", "Messages not sent again, because their ACK had arrived.", "edge"),
    counter("link_calls", "engine_edge_link_calls", "Exchanges with shards and schedulers.", "edge"),
    gauge("degraded", "engine_edge_degraded", "1 while a part of this edge does less than it should.", "edge", "part"),
)  # fmt: skip
"""Of edges, with labels beside the edge's, and what is reported like these."""

EDGE_LATENCIES: Final = (
    _histogram(
        "publish_latency", "engine_edge_publish_seconds", "From a parsed publish request to the answers of shards and schedulers.", "edge"
    ),
)
WANTED: Final = Family(
    "engine_actors_wanted", "gauge", "Actors that are wanted, by an operator, the settings or the autoscaler.", ("role",)
)
HAVE: Final = Family("engine_actors", "gauge", "Actors that work: shards and schedulers of the slot map, edges that serve.", ("role",))
WAITING: Final = Family("engine_actors_waiting", "gauge", "Actors without a process, for which no node has a place free.", ("role",))
SLOTS_LEFT: Final = Family("engine_slots_left", "gauge", "Slots that are still to be moved to other shards.")
SLOTS_MOVED: Final = Family("engine_slots_moved", "counter", "Slots moved since the controller started.")
DECIDED: Final = Family(
    "engine_autoscaler_wanted", "gauge", "The autoscaler's last decision, carried out or not, by role and action.", ("role", "action")
)
SNAPSHOT_AGE: Final = Family("engine_snapshot_age_seconds", "gauge", "Since the last snapshot of the engine's own Redis.")
SNAPSHOT_FAILURES: Final = Family("engine_snapshot_failures", "counter", "Scheduled snapshots of the engine's own Redis that failed.")
RECENT: Final = Family(
    "engine_delivery_recent_seconds", "gauge", "Quantiles from acceptance to the acknowledgement over the recent past.", ("quantile",)
)
REDIS_UP: Final = Family("engine_redis_up", "gauge", "1 while every store answers the controller.")
REDIS_MEMORY: Final = Family("engine_redis_memory_bytes", "gauge", "Memory that the server of each store uses.", ("store",))
REDIS_MEMORY_MAX: Final = Family(
    "engine_redis_memory_max_bytes", "gauge", "Memory that the server of each store may use; 0 is no limit.", ("store",)
)

OF_ACTORS: Final[Mapping[str, tuple[Family, ...]]] = {
    "Every actor": (INFO, UP, *(figure.family for figure in PROCESS)),
    "Shards": (*(figure.family for figure in (*SHARD, *SHARD_LATENCIES)), RECENT),
    "Tenants, categories and reasons": tuple(figure.family for figure in TENANT),
    "Schedulers": tuple(figure.family for figure in (*SCHEDULER, *SCHEDULER_LATENCIES)),
    "Edges": tuple(figure.family for figure in (*EDGE, *EDGE_LABELLED, *EDGE_LATENCIES)),
}
ENGINE_WIDE: Final[Mapping[str, tuple[Family, ...]]] = {
    "Redis": (REDIS_UP, REDIS_MEMORY, REDIS_MEMORY_MAX, SNAPSHOT_AGE, SNAPSHOT_FAILURES),
    "Numbers of actors": (WANTED, HAVE, WAITING, SLOTS_LEFT, SLOTS_MOVED, DECIDED),
}
"""The metrics of the kernel, as docs/METRICS.md lists them; those of features stand between both."""
