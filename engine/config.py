"""`Config`: every value an engine can be given, typed, with its unit in its name and the reason for its default beside it.

Two kinds. Published settings are the interface to operators: `engine.cli.settings` groups them in sections, documents them and reads them
from `engine.toml`, the environment and the command line. Internal limits bound memory, time and queues of one mechanism; they have names
so that tests and benchmarks can vary them, and change without notice. A limit that one module uses and nothing varies is a constant there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from engine.errors import ConfigError

Port = Annotated[int, Meta(ge=0, le=65535)]
NUMBER_MAX: Final = 10**13
"""10 TB, or 300 years in ms: what is computed from it stays below 64 bits in Redis, links and stored records."""

DURATION_S_MAX: Final = 1000 * 365 * 86_400
"""A thousand years: the sum of some durations and of the time of now is within a timer's wheel and a date of 4 digits."""

Positive = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
NonNegative = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Ahead = Annotated[int, Meta(ge=1, le=DURATION_S_MAX)]  # seconds
Tenant = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")]


REDIS_MEMORY_BYTES_MIN: Final = 128 << 20
"""Below it, the tenth that edges leave to the engine's own writes would be less than what may be under way."""


STORES_ALLOWED: Final = (1, 2, 4, 8, 16)
"""Numbers of stores in a Redis Cluster: each divides the 16 timer partitions, so that a partition is in one store with the slots of its
users."""

STORES_DEFAULT: Final = 4
"""For a cluster's URL that names no number: the first one allowed that uses each of three masters, the fewest that a cluster has."""


_CLUSTER_URL: Final = re.compile(r"(rediss?\+cluster://[^/?#]+)(?:/([0-9]*))?(\?[^#]*)?")


_ORIGIN: Final = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?", re.IGNORECASE | re.ASCII)
"""RFC 6454, section 6.2. Other schemes, `null` and wildcards match no request."""


CATCH_MAILS: Final = "catch://"
"""As `smtp_url`: mails are kept and shown to operators, and none is sent."""


HTTP_URL: Final = re.compile(r"https?://(?:[^\s/?#@:\[\]]+|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,4}))?(?:/[^\s?#]*)?", re.ASCII)
_HOSTS: Final = re.compile(r"(?:\*\.)?[A-Za-z0-9][A-Za-z0-9.-]*|[0-9A-Fa-f:.]{2,45}")


SECRETS: Final = (
    "redis_url",
    "jwt_secret",
    "jwt_jwks_url",
    "webhook_secret",
    "history_url",
    "smtp_url",
    "apprise_recipients",
    "ray_events_secret",
    "sources",
)
"""Settings that are secrets, or URLs that may hold a password. Their values are `Secret`s in every `Config`."""


SettingRule = tuple[bool, str]
"""Whether it holds, and what an operator reads where it does not."""


class Section(Struct, frozen=True):
    """Published settings that belong together: what they are about, what each of them means, and rules that their types do not express."""

    about: str
    settings: Mapping[str, str]
    rules: Callable[[Config], Iterator[SettingRule]] = lambda _config: iter(())


class Secret(str):
    """A text that shows itself to nobody by accident: `repr` hides it, and it cannot be pickled, so nothing takes it into Ray."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'" if self else "''"

    def __reduce_ex__(self, _protocol: Any) -> tuple[type[Secret], tuple[str]]:
        if self:
            raise TypeError("a secret is not pickled; see engine.store.sealed_config")
        return Secret, ("",)


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of an engine. Immutable; every process of one engine gets the same values.

    Constructing one checks nothing: `engine.cli.settings.load` does, and is what the command line uses.
    """

    def __post_init__(self) -> None:
        for name in SECRETS:
            value = getattr(self, name)
            if type(value) is not Secret:
                msgspec.structs.force_setattr(self, name, Secret(value))

    def __reduce__(self) -> tuple[Any, ...]:
        """As Ray keeps it for an actor's next process, which may run another version of the code."""
        return _unpickled, ({name: getattr(self, name) for name in self.__struct_fields__},)

    # -- published: [engine] -------------------------------------------------------------------------------------------
    shards: Annotated[int, Meta(ge=0, le=32)] = 0  # 0: as many as the stored data is for, else one per CORES_PER_SHARD
    schedulers: Annotated[int, Meta(ge=1, le=16)] = 1  # 16 timer partitions exist
    edges: Annotated[int, Meta(ge=1, le=64)] = 1  # all edges of a node listen on the same port (SO_REUSEPORT)
    address: str = ""  # empty: start a local Ray
    place: Literal["offered", "anywhere"] = "offered"  # a cluster's owner says which nodes carry it; `anywhere` is for trying
    namespace: str = "engine"
    data_dir: str = ".engine"
    rules_path: str = ""  # empty: events match no rule
    start_timeout_s: Positive = 120  # Ray alone takes up to 30 s on a busy machine
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"

    # -- published: [edge] ---------------------------------------------------------------------------------------------
    host: str = "127.0.0.1"  # loopback: exposing the engine is a decision, not a default
    port: Port = 8000
    allowed_origins: tuple[str, ...] = ()  # empty: the engine's own origin only
    heartbeat_ms: Positive = 30_000  # half of the 60 s after which common proxies close a silent connection
    drain_spread_ms: Positive = 5000  # an edge of 10 000 clients sends 2 000 of them elsewhere in each second
    offline_after_ms: Positive = 30_000  # three or four of the reconnect delays that clients are given

    # -- published: [redis] --------------------------------------------------------------------------------------------
    redis_url: str = ""  # empty: the engine starts a Redis of its own
    redis_fsync: Literal["always", "everysec"] = "always"  # `everysec` may lose the last second in a power cut
    redis_memory_bytes_max: NonNegative = 0  # 0: a third of the machine's; rewriting its file may take as much again
    redis_durability: Literal["required", "reported"] = "required"  # a 202 must not promise what the Redis behind it does not keep
    redis_replicas_min: NonNegative = 0  # 0: a fail-over may lose the last moments
    snapshot_interval_s: NonNegative = 0  # 0: none; each forks Redis and writes all of its data once
    snapshots_kept: Positive = 7  # a week of days

    # -- published: [auth] ---------------------------------------------------------------------------------------------
    jwt_secret: str = ""  # empty and no key below: made, and kept in the data directory with mode 0600
    jwt_public_key: str = ""
    jwt_jwks_url: str = ""
    jwt_issuer: str = ""  # checked when set
    jwt_audience: str = ""  # checked when set
    ray_publish: tuple[Tenant, ...] = ()  # closed on a cluster: whoever may submit a job there could publish
    ray_listen: tuple[Tenant, ...] = ()  # apart from publishing: it reads, and acknowledges, what users get

    # -- published: [delivery] -----------------------------------------------------------------------------------------
    ttl_s_default: Positive = 72 * 3600  # a weekend, and a day
    retry_tries: Positive = 3  # a client that has missed three is disconnected or stuck
    digest_ms: Positive = 3_600_000
    digest_model: str = ""  # empty: the engine's own, where the extra `digest` is installed

    # -- published: [limits] -------------------------------------------------------------------------------------------
    connections_max: Positive = 50_000  # about 30 KB each
    connections_per_s: Positive = 100  # 3 % of a core of the edge, and of its shards: returning clients never slow down those that stayed
    connections_idle_per_s: Positive = 1500  # half a core of the edge, while nobody else needs it
    connections_per_user_max: Positive = 8  # one person's devices and browser tabs
    connections_per_address_max: Positive = 1000  # sockets of one client address on an edge: an office behind one; loopback is not counted
    offline_max: Positive = 10_000  # nobody reads further back after an absence
    offline_bytes_max: Positive = 16 << 20  # and their bytes: 10 000 messages of 1.6 KB
    inbox_max: NonNegative = 100  # five screens of an inbox; one of 170 bytes takes some 250 of Redis
    inbox_ttl_s: Ahead = 30 * 86_400  # what is older, nobody looks for in a list of notifications
    user_forget_s: Ahead = 90 * 86_400  # a season: then nobody comes back for a notification
    data_bytes_max: Positive = 64 << 10  # a notification carries a reference to a document, not the document
    shard_memory_bytes_max: Positive = 512 << 20  # a process takes some 200 MB beside it

    # -- published: [links] ----------------------------------------------------------------------------------------------
    link_transport: Literal["auto", "ray"] = "auto"  # a Ray call costs more than ten times a socket's exchange
    link_ports: str = "20000-20099"  # next to Ray's worker ports (10002-19999), so firewalls have one range; one port per actor
    link_tls_cert: str = ""  # empty: nodes are in one trusted network, as Ray's own connections without TLS assume
    link_tls_key: str = ""
    link_tls_ca: str = ""

    # -- published: [autoscale] ----------------------------------------------------------------------------------------
    autoscale_shards: str = ""  # FIRST-LAST; empty: machines cost money, so an operator says how many there may be
    autoscale_schedulers: str = ""
    autoscale_edges: str = ""
    autoscale_dry_run: bool = False

    # -- published: [tenants], each of one tenant, 0 for none ----------------------------------------------------------
    # None by default: an engine of one tenant needs no quota, and what tenants may use is a matter of what they pay for.
    tenant_requests_per_s: NonNegative = 0
    tenant_users_max: NonNegative = 0
    tenant_stored_bytes_max: NonNegative = 0
    tenant_topics_max: NonNegative = 0
    tenant_signal_names_max: NonNegative = 0
    tenant_rules_max: Annotated[int, Meta(ge=0, le=1000)] = 0  # closed by default: each edge tries them on each event of the tenant
    tenant_channels: tuple[str, ...] = ("push", "email")
    tenant_hosts: tuple[str, ...] = ()  # empty: who writes a tenant's rules says not which systems get data of users
    tenant_cap_max: NonNegative = 20  # above what anyone reads in a day

    # -- published: [history] ------------------------------------------------------------------------------------------
    history_url: str = ""  # empty: none. It costs a process, a database, and a seventh of a shard's CPU
    history_ttl_s: Ahead = 30 * 86_400  # complaints and analyses come within a month

    # -- published: [ingest] -------------------------------------------------------------------------------------------
    sources: str = ""  # JSON of the tables [[source]]; empty: none, and no process for them

    # -- published: [traces] -------------------------------------------------------------------------------------------
    trace_url: str = ""  # empty: none; then they cost nothing
    trace_ratio: Annotated[float, Meta(ge=0, le=1)] = 0.01  # a span costs its process some 55 us, and a message has four or more

    # -- published: [actions] ------------------------------------------------------------------------------------------
    # Nobody may be called by default: which systems get data of users is for operators to say, and not for who writes rules.
    webhook_hosts: tuple[str, ...] = ()
    webhook_networks: tuple[str, ...] = ()
    webhook_secret: str = ""
    question_targets: tuple[str, ...] = ()  # closed by default: who may publish could call them

    # -- published: [ray_events] ---------------------------------------------------------------------------------------
    ray_events: Annotated[str, Meta(pattern=r"\A([A-Za-z0-9_.-]{1,64})?\Z")] = (
        ""  # closed by default: who submits a job names who is notified
    )
    ray_events_users: tuple[str, ...] = ()
    ray_events_secret: str = ""  # empty: Ray exports no events to this engine

    # -- published: [channels] -----------------------------------------------------------------------------------------
    smtp_url: str = ""  # empty: no mail is sent
    mail_from: str = ""
    apprise_urls: tuple[str, ...] = ()  # empty: users have no addresses there; whom the engine calls is for operators to say
    apprise_recipients: str = ""
    push_hosts: tuple[str, ...] = ("fcm.googleapis.com", "*.push.services.mozilla.com", "*.push.apple.com", "*.notify.windows.com")
    push_contact: str = ""  # empty: push services do not learn who sends, which Apple's refuses
    public_url: str = ""  # empty: mails have no links to the engine; behind a proxy it cannot know its own address

    # -- internal: identity --------------------------------------------------------------------------------------------
    jwks_cache_s: Positive = 300  # a key taken out of the list is refused after this at the latest
    jwks_refetch_s: Positive = 10  # between fetches asked for by unknown key ids or after a failure: anyone can invent a key id
    jwks_timeout_ms: Positive = 5000  # of one fetch
    verified_tokens_max: Positive = 20_000  # cached per edge, some 20 MB: reconnects and publishers present the same token many times
    token_lifetime_s_max: Positive = 400 * 86_400  # longer ones are refused, since a revocation has to be kept for as long;
    # 400 days is what browsers give a cookie (RFC 6265bis, section 5.5)
    revocations_max: Positive = 100_000  # in force at once, of all tenants: some 40 MB in each edge; beyond it 429
    revocations_per_tenant_max: Positive = 50_000  # so that one tenant leaves room for others
    revocations_poll_ms: Positive = 500  # how often an edge looks for new ones: on every edge within a second
    revocations_stale_ms: Positive = 5000  # without an answer for longer, tokens not seen before get 503; a fail-over takes 3 s

    # -- internal: publishing ------------------------------------------------------------------------------------------
    body_bytes_max: Positive = 1 << 20
    items_max: Positive = 1000  # per publish request, after `users` is expanded
    id_chars_max: Positive = 128  # ids, users, types, devices: an identifier, not a document
    event_id_chars_max: Positive = 500  # id and source of a CloudEvent, each: in any script both fit into a context
    context_bytes_max: Positive = 4096  # each member beside `data`: `engine.core.model.members.COPIED`
    json_depth_max: Positive = 200  # a fifth of what Python clients can read; hand-made JSON stays below 20
    errors_told_max: Positive = 100  # bad items listed in one 422: enough to see the pattern
    ttl_s_max: Ahead = 30 * 86400
    collapse_window_s_max: Ahead = 86_400  # a day: what is merged for longer is not news; and ids are not remembered for longer
    collapse_text_chars_max: Positive = 500  # of a template for a summary's text
    collapse_data_bytes_max: Positive = 8 << 10  # of a message with a window: the newest of each window is part of the user's page
    delay_s_max: Ahead = 10 * 365 * 86400
    idempotency_caller_s: Positive = 24 * 3600
    rules_check_ms: Positive = 1000  # how often an edge checks whether the rules file has changed
    rules_poll_ms: Positive = 500  # how often it looks for another version of stored rules: in force on every edge within a second
    rules_bytes_max: Positive = 256 << 10  # of one version: a thousand rules of average length
    recorded_events_max: Positive = 2000  # for dry runs, of all tenants: 16 MiB of the largest
    recorded_event_bytes_max: Positive = 8 << 10  # larger ones are not recorded
    recorded_events_per_s: NonNegative = 50  # at one edge: a sample under load, for 0.1 % of a core. 0: none, no dry runs
    recorded_events_of_tenant_per_s: Positive = 10  # of these: a busy tenant leaves room for others
    recorded_events_keep_s: Positive = 86_400  # a day has all kinds; and they hold data of users, who may be erased
    dry_run_events_max: Positive = 500  # looked at by one dry run: two seconds of a thread with a thousand rules
    signals_flush_ms: Positive = 1000  # counter signals are added in batches of this time; those on an edge that dies are lost
    signals_names_max: Positive = (
        20_000  # different names in one batch: about 4 MB; a tenant alone has half of them, further ones are dropped and counted
    )
    publish_heads_max: Positive = 1000  # kept by an edge, of 2 KiB at most: a publisher's differ by the length of the body only
    publish_timeout_ms: Positive = 8000  # longer than a shard's restart, shorter than a usual HTTP client's patience
    publish_inflight_max: Positive = 50_000  # unanswered items per edge, whatever their delay: bounds their memory
    publish_inflight_bytes_max: Positive = 64 << 20  # and their bytes on links, where `users` makes a thousand of one body; then 429
    publish_delay_target_ms: Positive = (
        500  # a request that would wait longer is rejected with 429; low priority at half of it, normal at 80 %
    )
    publish_rate_initial_per_s: Positive = 10_000  # items a second assumed by an edge before it has measured its rate; 1 KB each
    publish_window_items: Positive = 250  # sent to a shard and unanswered, beside high ones; grows to twice what its measured speed needs,
    # and shrinks to half while high ones are not answered within three times the shortest time an item took, and
    publish_high_ms: Positive = 10  # two commits on a good disk
    publish_window_bytes: Positive = 32 << 20  # unanswered by one shard or scheduler, high ones included; an eighth of its link's queue,
    # beyond which the session would be reset and everything sent again, and four of its batches

    # -- internal: delivery --------------------------------------------------------------------------------------------
    retry_first_ms: Positive = 100  # above most round trips, so that few messages are sent twice
    retry_cap_ms: Positive = 2000
    window: Positive = 256  # unacknowledged messages in flight per connection
    window_bytes: Positive = 1 << 20  # and their bytes: a window of the largest messages must not be 16 MiB
    ack_timeout_factor: float = 1.8  # of the smoothed round trip
    ack_rtt_initial_ms: Positive = 250  # before the first measurement
    frame_bytes_max: Annotated[int, Meta(ge=125, le=NUMBER_MAX)] = 64 << 10  # from a client; ACKs are tiny, control frames have up to 125
    malformed_frames_max: Positive = 10
    fragments_max: Positive = 128  # frames of one message: clients fragment by the kilobyte, if at all
    client_frames_per_s: Positive = 20  # of one connection, beside cumulative ACKs: heartbeats, topics, tokens; beyond it 4429
    client_frames_burst: Positive = 512  # two windows of messages that are acknowledged one by one
    client_frames_per_message: Positive = 4  # more for each message delivered: an ACK by id, in fragments
    frame_requests_per_connection_max: Positive = 16  # unanswered subscriptions, events and answers; a client that waits for each has one
    frame_requests_max: Positive = 5000  # of all connections of an edge: a tenth of publish_inflight_max, so publishers have room
    send_buffer_bytes_max: Positive = 4 << 20  # per connection at the edge; past it 4413
    send_buffers_bytes_max: Positive = 512 << 20  # of all connections of an edge; past it those with the most: 4413, before memory ends
    send_stall_ms: Positive = 10_000  # unsent bytes and no progress for this long: 4413
    socket_send_buffer_bytes: NonNegative = 128 << 10  # SO_SNDBUF, so that a slow client is seen early; 0 leaves the kernel's
    deliver_bytes_max: Positive = 256 << 10  # messages coalesced into one frame

    # -- internal: connections -----------------------------------------------------------------------------------------
    drain_ms: Positive = 2000  # a close handshake takes a round trip; an operator at Ctrl-C waits this long
    heartbeat_max_ms: Positive = 120_000  # on a jittery network the interval grows: 30 -> 60 -> 120 s
    pong_timeout_ms: Positive = 5000
    client_timeout_ms: Positive = 60_000  # sent to clients: they reconnect after this long without a frame
    connections_burst_s: Positive = 10  # an edge admits `connections_per_s` of so many seconds at once: a house after a switch restarts
    connections_warmup_ms: Positive = 2000  # after its start an edge reaches that rate within it: page reads and caches are cold
    connections_retry_s_max: Positive = 120  # `Retry-After` of the last of 12 000 refused clients
    openings_per_s: Positive = (
        2000  # requests for connections, on new sockets, that an edge reads; or connections_per_s where that is more:
    )
    # to refuse so many takes a quarter of a core, and 10 000 clients at once wait for 5 s at most; and
    closings_per_s: Positive = (
        4000  # lost connections that it closes, and announces to shards: a quarter of a core, and a sixth of the shard's
    )
    connections_of_user_per_s: Positive = 4  # all devices of a user that flap; a loop is refused without harm to others
    connections_of_user_burst: Positive = 32  # four times `connections_per_user_max`
    reconnect_delays_ms: tuple[int, ...] = (1000, 2000, 5000, 10_000)
    reconnect_jitter: float = 0.3
    close_timeout_ms: Positive = 5000  # for the client's answer to a close frame; then the transport is reset
    poll_wait_s_max: Positive = 60  # proxies cut requests that are silent for longer
    poll_grace_ms: Positive = 1000  # a poll with a shorter wait still gives the shard this long to answer
    http_connections_max: Positive = 10_000  # of an edge beside connections_max: publishers, pages, probes; some 10 KB each
    request_head_bytes_max: Positive = 64 << 10  # request line and headers: tokens, cookies and what proxies add; and again trailers
    request_headers_max: Positive = 100  # of one request, some 100 bytes each; browsers and proxies send 20 to 40
    request_timeout_s: Positive = 30  # for a client to send a request's head, again its body, and a WebSocket frame
    ray_requests_max: Positive = (
        200  # of Ray jobs, that an edge answers at once: a fifth of its concurrent calls, which health checks need too
    )
    keep_alive_s: Positive = 75  # idle HTTP connections; longer than the pools of usual HTTP clients keep theirs

    # -- internal: mailboxes -------------------------------------------------------------------------------------------
    session_stream_max: Positive = 1_000_000  # about 100 MB in Redis
    sweep_ms: Positive = 300_000
    recent_ids: Positive = 256  # per mailbox in memory: answers a publisher's quick retry without Redis
    hot_messages_max: Positive = 1024  # per mailbox in memory; the rest is read from the offline stream when needed
    hot_bytes_max: Positive = 1 << 20  # and their bytes: one window
    conflate_offline_min: Positive = 100  # `collapse` keeps all messages of an offline user while fewer than this are pending
    collapse_keys_max: Positive = 64  # per mailbox: the most recent keys, some 100 bytes each in its page
    gaps_max: Positive = 256  # separate gaps in a mailbox beyond which nothing is conflated: each is 10 bytes in its page, and a frame
    windows_max: Positive = 16  # open at once per user; a message that would open one more is delivered at once
    windows_close_max: Positive = 250  # per group commit: some 10 ms, by which the commit is delayed
    inbox_pinned_max: Positive = 20  # they stay for ever, and are no archive
    inbox_page_max: Positive = 100  # messages of one answer: a screen of any device
    inbox_page_bytes_max: Positive = 1 << 20  # and their bytes, but for one message: as many as one publish request
    inbox_reads_max: Positive = 1000  # reads of inboxes that wait for storage at one shard: half a second of Redis
    inbox_unwritten_bytes_max: Positive = 32 << 20  # acknowledged messages at one shard that no checkpoint has written: beyond it one is
    profile_entries_max: Positive = 50  # of each list of a profile: it is part of the user's page, some 20 KB at most
    confirm_user_max: Positive = 5  # mails of confirmation that one user causes in a day: nobody has more addresses to try
    confirm_address_max: Positive = 3  # ... and that one address gets, whoever asks: a stranger's, perhaps
    counted_max: Positive = 64  # categories, and types, counted against limits per user: 30 bytes each in the page; the oldest is evicted
    decisions_max: Positive = 32  # decisions against a user's messages that its timeline keeps: some 150 bytes each in the page
    digest_messages_max: Positive = 1000  # missed messages that one digest tells of, the newest: about 15 ms of an edge, in a thread
    digest_bytes_max: Positive = 2 << 20  # and their bytes
    digest_lines: Positive = 20  # of a digest whose client does not say: a screen of a telephone
    digest_lines_max: Positive = 100  # that a client may ask for; nobody reads more after an absence
    digest_after_ms: NonNegative = 300_000  # a client that asked gets a digest when it connects and something is pending for longer
    digest_messages_min: Positive = 5  # and so many messages are: fewer are read faster than their digest
    digests_waiting_max: Positive = 50  # at one edge, 2 MB each at most; beyond it 429, and clients that connect get none
    digest_model_ms: Positive = 500  # for the model to group what no rule settles; then the digest is made by rules alone
    digest_model_actors: Positive = 1  # of each edge, about 200 MB each, started when the first digest needs one
    digest_model_calls_max: Positive = 8  # under way at one edge; a model that is this far behind would not answer in time
    question_deadline_s_default: Positive = 86_400  # of a question that names none: a person answers within a day
    question_deadline_s_max: Positive = 30 * 86_400  # a month; a job that waits for longer asks again
    question_keep_s: Positive = 7 * 86_400  # after its answer: a job that runs again a week later still finds it
    question_answers_max: Positive = 8  # buttons under one message
    question_members_max: Positive = 1000  # whose answers are counted: some 100 bytes each
    question_text_chars_max: Positive = 1000  # of an answer in words
    questions_per_user_max: Positive = 500  # in storage, answered ones too: nobody reads more; some 1 KB each without their data
    question_waits_max: Positive = 1000  # askers that wait at one edge, which looks for all their answers at once
    question_poll_ms: Positive = 200  # between two such looks: some 20 us of Redis for each asker, and only while one waits
    growing_rollup_ms: Positive = 40  # what arrives within it is one part for devices: 25 a second look continuous
    growing_chunk_ms: Positive = 100  # the oldest text that storage does not have: what a crash of an edge can cost
    growing_chunk_bytes: Positive = 4 << 10  # ... or so much of one message: then it is stored at once
    growing_bytes_max: Positive = 54 << 10  # of the text, as JSON: at the end it is in `data`, with what `data` and its ending had
    growing_idle_s: Positive = 120  # without a part or a request of the publisher: the message ends with the text there is
    growing_keep_s: Positive = 3600  # after the end: a late reader still finds the whole text; the inbox has it, too
    growing_per_user_max: Positive = 50  # that grow at once: more than a screen shows
    growing_per_tenant_max: Positive = 10_000  # that grow at once, on each Redis server: some 500 MB when all are full
    growing_buffer_bytes_max: Positive = 32 << 20  # text at one edge that storage does not have: seconds of it while storage is slow
    growing_progress_chars_max: Positive = 200  # of the text of a progress: a line under its bar
    growing_poll_ms: Positive = 200  # between two such looks, as `question_poll_ms`
    mailbox_idle_ms: Positive = 300_000  # after it a mailbox without connections is evicted from memory
    suspects_max: Positive = (
        200_000  # users of a shard whose clients may come back, about 400 bytes each; beyond it the first are offline early
    )
    dead_letters_max: Positive = 100_000  # per tenant, approximately
    dead_letters_bytes_max: Positive = 64 << 20  # per tenant: an operator looks at the latest
    audit_entries_max: Positive = 100_000  # acts of operators, 30 MB in Redis; a hundred a day for three years
    dead_letters_page_max: Positive = 100  # listed in one answer, redriven or dropped by one request: at most 7 MB of them in memory
    dead_letters_looked_max: Positive = 2000  # in storage for one page of a single user's: some 100 ms of an edge when all are large
    event_groups_max: Positive = 16  # of consumers, per tenant: each has every event of the stream read for it, also other tenants'
    event_page_max: Positive = 1000  # events in one answer, and entries looked at in one go: some 300 KB, and some 10 ms of an edge
    event_looks_max: Positive = 20  # pages of entries for one answer; then the consumer asks again
    event_poll_ms: Positive = 200  # a waiting consumer looks for new events; one look costs Redis some 20 us
    event_polls_max: Positive = 200  # consumers of events that wait at one edge; a tenant has as many as it leaves free, half of them alone
    event_lease_ms: Positive = 30_000  # a silent consumer has its group for so long: above what an edge waits, and what a batch takes
    quarantine_max: Positive = 10_000  # stored records that could not be read, kept per shard and per partition of timers
    operator_rows_max: Positive = 100  # tenants, topics, quarantined records, slow clients of one answer: some 30 KB
    slow_client_ms: Positive = 1000  # a client with an older unacknowledged message is slow: above the round trip of any network

    # -- internal: broadcasts ------------------------------------------------------------------------------------------
    broadcasts_max: Positive = (
        10_000  # in the log, of all tenants; the oldest are trimmed, and users who have not connected since miss them
    )
    broadcasts_bytes_max: Positive = 32 << 20  # and their bytes; every shard mirrors the log in memory
    adopt_max: Positive = 500  # broadcasts per group commit, counted once per mailbox: a few ms, by which the commit is delayed
    topics_per_user_max: Positive = 100  # subscriptions: they are part of the user's page
    shared_bytes_max: Positive = 4 << 20  # bodies of broadcasts cached by an edge per shard; a cached body is not sent again
    fan_out_max: Positive = 64  # connections an edge writes a broadcast to before it yields to others: about 0.6 ms

    # -- internal: journal ---------------------------------------------------------------------------------------------
    commit_records_max: Positive = 2000  # one group commit stays below ~1 MB and a few ms of Redis time
    commit_bytes_max: Positive = 4 << 20
    commit_retry_ms: Positive = 2000  # storage away longer than this: publishers get 503
    ack_journal_ms: Positive = 200  # ACKs wait this long for the next commit; losing one only causes a repeat
    checkpoint_ms: Positive = 3000
    checkpoint_mailboxes: Positive = 32  # prepared at once, fewer with many messages: the shard is blocked for about 1 ms
    posts_pending_max: Positive = 50_000  # messages waiting for a page or a commit, per shard; beyond it OVERLOADED
    redis_connections_max: Positive = 16  # per process; a command waits for a free one, for redis_timeout_ms at most
    redis_replicas_timeout_ms: Positive = 1000  # for them to have it; then it is repeated, and after commit_retry_ms publishers get 503
    redis_restart_ms: Positive = 100  # its own Redis is started again at once, then after this, doubling
    redis_restart_max_ms: Positive = 2000  # ... up to this: a Redis that cannot start must not fill the log
    shard_memory_messages_max: Positive = 2_000_000  # unacknowledged messages in memory per shard; beyond it OVERLOADED
    pressure_tick_ms: Positive = 100  # how often a shard measures its load: 0.1 % of a core
    pressure_lag_ms: Positive = 250  # age of the oldest waiting post that is pressure: ten times what a commit takes under full load
    pressure_calm_ms: Positive = 1000  # a level ends after so long below 70 % of what began it, or the same messages would come and go

    # -- internal: timers ----------------------------------------------------------------------------------------------
    timers_per_user_max: Positive = 10_000  # as many as a mailbox keeps
    timer_horizon_ms: Positive = 60_000  # durable timers due within it are in the wheel
    timer_load_max: Positive = 2000  # loaded from Redis in one go: a few ms of Redis and of the scheduler; the next page follows at once
    timer_load_bytes: Positive = 4 << 20  # and their bytes, which Redis has to hold for the reply
    timer_memory_max: Positive = 200_000  # durable timers in a scheduler's memory; the farthest are left to Redis beyond it
    timer_memory_bytes: Positive = 256 << 20  # and their bytes
    timer_batch: Positive = 500  # due timers per Fire record
    timer_batch_bytes: Positive = 1 << 20  # and their bytes: several records fit a link batch
    timer_claims_max: Positive = 5000  # due timers handed to one shard and not confirmed; the rest waits, oldest first
    timer_claims_bytes: Positive = 32 << 20  # and their bytes; far below the 256 MiB of a link's queue, or a burst would reset the session
    timer_requests_max: Positive = 20_000  # waiting for storage, per scheduler; beyond it 429
    timer_removal_ms: NonNegative = (
        100  # confirmed timers are removed from storage in batches of this time; a crash meanwhile fires them again
    )
    timer_claim_ms: Positive = (
        2000  # a scheduler claims this far ahead, one write per half of it; after a crash, what is within it cannot be cancelled
    )
    timer_refire_ms: Positive = 5000  # a Fire that is not confirmed for this long has failed
    timer_retry_first_ms: Positive = 100  # a failed timer is handed out again after this; doubles with every further failure
    timer_retry_cap_ms: Positive = 5000
    timer_failures_max: Positive = 3  # then it waits for the compensation batch: a timer that keeps failing must not delay the rest
    timer_degrade_load: float = 0.9  # of timer_claims_max or _bytes: a shard this busy gets failed timers with the compensation batch only
    timer_compensate_ms: Positive = 1000  # between compensation batches of one shard, timer_batch timers each, while some fail
    list_timers_max: Positive = 1000
    list_timers_bytes: Positive = 2 << 20  # of one listing; a longer one is cut and marked as such
    slots_refresh_ms: Positive = 1000  # how often a scheduler reads the slot map; a stale one delays a timer, never loses it

    # -- internal: links -----------------------------------------------------------------------------------------------
    link_pacing_ms: float = 2.0  # between calls of one link while messages wait, so between commits; the first leaves at once
    link_timer_pacing_ms: float = 8.0  # of the links to schedulers, where a burst of timers matters more than its first milliseconds
    link_ack_pacing_ms: float = 20.0  # when only ACKs and the like wait
    link_calls_share: float = 0.35  # of a core that the exchanges of an actor's links may take before their intervals grow
    link_ray_pacing_max_ms: float = 50.0  # so far, where they are Ray calls: an answer takes two of them; 22 busy links keep the share then
    link_park_ms: Positive = 1000  # a parked call is answered after this at the latest: the liveness lease
    link_timeout_ms: Positive = 3000  # without a reply, or a request, for this long the session ends
    breaker_error_ratio: float = 0.5  # of requests to a shard that fail; then those that need it get 503 at once
    breaker_window_ms: Positive = 10_000  # over which they are counted: longer than publish_timeout_ms, after which one has failed
    breaker_calls_min: Positive = 20  # in it: fewer are no ratio
    breaker_open_ms: Positive = 60_000  # unless a new session with the shard works earlier, as after a crash, in a second or two
    breaker_probes: Positive = 10  # unanswered at once while it is tried again, and as many decide

    # -- internal: actions ---------------------------------------------------------------------------------------------
    action_parallel: Positive = 8  # of one target at one edge: what a small service takes; each up to 70 KB
    actions_waiting_max: Positive = 2000  # in the stream of one target, 140 MB at most; beyond it they wait as timers
    action_timeout_ms: Positive = 10_000  # of one call: a service that takes longer should answer first, and work then
    smtp_mails_max: Positive = 100  # over one connection: servers limit them, and a new one costs some mails' work
    smtp_idle_ms: Positive = 5000  # a connection without mails is ended: RFC 5321 lets servers do it after 5 minutes
    action_retry_first_ms: Positive = 100
    action_retry_cap_ms: Positive = 5000
    action_give_up_s: Positive = 3600  # after it fired: a business event of an hour ago is for people to decide about
    action_claim_ms: Positive = 15_000  # an edge that has not held an action for so long is taken for dead: longer than one call may take
    action_poll_ms: Positive = 100  # an edge looks for new actions; one look costs Redis some 20 us per target
    action_breaker_calls_min: Positive = 5  # fewer are no ratio; a target may have few calls
    action_breaker_open_ms: Positive = 5000  # then one call probes: as long as the longest backoff

    # -- internal: traces ----------------------------------------------------------------------------------------------
    trace_slow_ms: Positive = 1000  # what takes longer is a span, sampled or not: far beyond the latency budget of a step
    trace_forced_per_s: Positive = 20  # spans of what is slow or fails, per process: enough to see why, in a storm too

    # -- internal: history ---------------------------------------------------------------------------------------------
    history_flush_ms: Positive = 200  # a killed process loses so much of what it did; batches this long compress well
    history_stream_bytes_max: Positive = 256 << 20  # some 10 million outcomes: an hour at 1000 messages a second without the database
    outcomes_kept_bytes_max: Positive = 64 << 20  # batches in the database, for slow groups of consumers: some 2 million outcomes
    outcomes_kept_ms: Positive = 86_400_000  # and at most so long: what an erased user did is gone from the stream by then
    history_rows_max: Positive = 5000  # of one transaction of the archivist: some 100 ms, after which nobody else waits for a lock
    history_sweep_ms: Positive = 60_000  # how often the archivist deletes rows older than history_ttl_s

    # -- internal: events of Ray ---------------------------------------------------------------------------------------
    ray_events_bytes_max: Positive = 8 << 20  # of one post: Ray sends 1000 events of 1 KB, and a larger one it would repeat for ever
    ray_events_waiting_max: Positive = 10_000  # posts with deaths that wait for the watcher; beyond it 503, and Ray keeps 100 000 events

    # -- internal: operating -------------------------------------------------------------------------------------------
    redis_timeout_ms: Positive = 2000  # a thousand times what a command takes; longer pauses count as an outage
    health_ms: Positive = 2000  # time between health checks; each costs an actor about 1 ms of CPU
    health_timeout_ms: Positive = 6_000  # an actor that leaves its checks unanswered for this long, four in a row, is replaced
    failover_ms: Positive = 600  # for the next process of a dead shard, where one is spare: twice what that takes; a new one takes 2 s
    takeover_ms: Positive = 60_000  # twice what Ray takes to give a node up: then users wait for a machine, and not for a restart
    upgrade_step_ms: Positive = 300_000  # without progress, an upgrade ends: a set of slots moves, and a process starts, in seconds
    drain_reserve_ms: Positive = (
        10_000  # before the deadline of its node a shard starts elsewhere, moved or not: it writes, ends and starts
    )
    autoscale_up_ms: Positive = 10_000  # a load that lasts so long is more than a burst, and five rounds of the controller have seen it
    autoscale_down_ms: Positive = 300_000  # an actor too many for five minutes costs little, one that comes and goes moves slots each time
    autoscale_up_share: float = 0.7  # of what an actor can do: queues are still short, and a machine for the next one takes a minute
    autoscale_down_share: float = 0.3  # less than half of that, or the second actor would be ended as soon as it has come
    connection_moves_per_s: Positive = 50  # of an edge, when another one joins: a twentieth of what an edge can welcome
    connection_moves_min: Positive = 50  # an edge with so many more than the mean lets them go: fewer are no load
    autoscale_target_share: float = 0.5  # which a change of the number aims at; between both, so that its own effect does not undo it
    stop_timeout_ms: Positive = 3000  # per kind of actor, for writing its state when the engine stops


def _unpickled(values: dict[str, Any]) -> Config:
    """The configuration another version of the code pickled: what this one does not know is dropped, what it did not is the default."""
    return Config(**{name: value for name, value in values.items() if name in Config.__struct_fields__})


def port_range(ports: str) -> range:
    """The ports of a setting `FIRST-LAST`. Raises ValueError."""
    first, last = (int(part) if part.isascii() and part.isdigit() else 0 for part in ports.split("-"))
    if not 1024 <= first <= last <= 65535:
        raise ValueError(ports)
    return range(first, last + 1)


def store_urls(redis_url: str) -> tuple[str, ...]:
    """The URL of each store that the setting names: several of a Redis Cluster (`engine.store.cluster`), "" for the engine's own."""
    found = _CLUSTER_URL.fullmatch(redis_url)
    if found is None:
        return (redis_url,)
    cluster, number, options = found.groups()
    stores = int(number or STORES_DEFAULT)
    return tuple(f"{cluster}/{stores}{options or ''}#{store}" for store in range(stores))


FIELDS: Final = {field.name: field for field in msgspec.structs.fields(Config)}
"""Every field of `Config` by its name: type and default."""


def check(config: Config) -> None:
    """Check what a field's type cannot express: finite numbers, and rules between settings.

    Raises:
        ConfigError: a rule is broken; the message names the setting, the rule and its reason.
    """
    for name in FIELDS:
        value = getattr(config, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{name}: a finite number is needed; no comparison with {value} would ever be a limit")
    require(
        *_edge_rules(config),
        *_delivery_rules(config),
        *_storage_rules(config),
        *_link_rules(config),
        *_event_rules(config),
    )


def require(*rules: SettingRule) -> None:
    """Raises ConfigError with the reason of the first rule that does not hold."""
    for holds, reason in rules:
        if not holds:
            raise ConfigError(reason)


def with_port(pattern: re.Pattern[str], url: str) -> bool:
    """Whether the pattern takes the URL; its one group is the port."""
    return (found := pattern.fullmatch(url)) is not None and int(found[1] or 1) <= 65535


def host_rules(config: Config, name: str) -> Iterator[SettingRule]:
    """Of a setting that lists hosts."""
    for host in getattr(config, name):
        yield (
            _HOSTS.fullmatch(host) is not None,
            f"{name}: {host!r} is not allowed; allowed are names and addresses without scheme, port and path, such as h.example, or "
            "*.example for all names below one",
        )


def _edge_rules(config: Config) -> Iterator[SettingRule]:
    for origin in config.allowed_origins:
        yield (
            origin == "*" or with_port(_ORIGIN, origin),
            f"allowed_origins: {origin!r} is not allowed; allowed is http://HOST[:PORT] or https://HOST[:PORT], without a path, as a "
            "browser sends it, or * for all",
        )


def _delivery_rules(config: Config) -> Iterator[SettingRule]:
    yield (
        config.heartbeat_ms < config.client_timeout_ms,
        f"heartbeat_ms: must be below {config.client_timeout_ms}, the silence after which clients reconnect",
    )
    yield (
        config.ack_timeout_factor > 1,
        "ack_timeout_factor: must be above 1, a timeout below the round trip repeats every message",
    )
    back_ms = int(config.reconnect_delays_ms[0] * (1 + config.reconnect_jitter)) if config.reconnect_delays_ms else 0
    yield (
        config.offline_after_ms > back_ms,
        f"offline_after_ms: must be above {back_ms}, the time after which a client first reconnects, else each lost connection is offline",
    )
    yield 0 <= config.reconnect_jitter < 1, "reconnect_jitter: allowed is 0 up to, not including, 1"
    yield (
        len(config.reconnect_delays_ms) > 0 and min(config.reconnect_delays_ms) >= 1,
        "reconnect_delays_ms: at least one delay, each at least 1",
    )
    yield (
        config.data_bytes_max <= config.window_bytes,
        f"data_bytes_max: must not exceed window_bytes ({config.window_bytes}), else a message could never be sent",
    )
    yield (
        config.growing_bytes_max + 2 * config.context_bytes_max + 2048 <= config.data_bytes_max,
        "growing_bytes_max: must be below data_bytes_max by 2048 and twice context_bytes_max, else the text would not fit into `data`",
    )
    yield (
        config.window <= config.client_frames_burst,
        f"client_frames_burst: must not be below window ({config.window}), else a client could not acknowledge a window one by one",
    )
    yield (
        config.frame_requests_max < config.publish_inflight_max,
        "frame_requests_max: must be below publish_inflight_max, else subscriptions could fill the table that publishers need",
    )
    yield config.digest_lines <= config.digest_lines_max, f"digest_lines: must not exceed digest_lines_max ({config.digest_lines_max})"
    yield (
        re.fullmatch(r"(serve://[A-Za-z0-9_.-]{1,128})?", config.digest_model) is not None,
        f"digest_model: {config.digest_model!r} is not allowed; allowed is serve://APP, a Ray Serve application, or empty for the "
        "engine's own model",
    )
    yield 2 * config.inbox_max <= config.offline_max, f"inbox_max: must not exceed half of offline_max ({config.offline_max})"
    yield config.ttl_s_default <= config.ttl_s_max, f"ttl_s_default: must not exceed ttl_s_max ({config.ttl_s_max})"


def _storage_rules(config: Config) -> Iterator[SettingRule]:
    yield " " not in config.redis_url.strip(), "redis_url: one URL is allowed; data that one server cannot hold go to a Redis Cluster"
    yield (
        "+cluster://" not in config.redis_url or _CLUSTER_URL.fullmatch(config.redis_url) is not None,
        "redis_url: allowed is redis+cluster://HOST,.../STORES, with a number behind the last slash",
    )
    stores = len(store_urls(config.redis_url))
    yield stores in STORES_ALLOWED, f"redis_url: {stores} stores; allowed are {', '.join(map(str, STORES_ALLOWED))}"
    yield config.shards == 0 or config.shards >= stores, f"shards: needed are at least {stores}, one for each store of redis_url"
    remembered_s = config.idempotency_caller_s
    yield (
        config.collapse_window_s_max <= remembered_s,
        "collapse_window_s_max: must not exceed idempotency_caller_s, else a repeated publish could count twice",
    )
    yield (
        config.digest_ms <= remembered_s * 1000,
        f"digest_ms: must not exceed {remembered_s * 1000}, as long as ids are remembered, else a repeated publish could count twice",
    )
    yield (
        not 0 < config.redis_memory_bytes_max < REDIS_MEMORY_BYTES_MIN,
        f"redis_memory_bytes_max: at least {REDIS_MEMORY_BYTES_MIN}, or 0 for a third of the machine's memory; a tenth of it is "
        "left for delivering what was accepted",
    )
    yield (
        config.offline_bytes_max >= config.window_bytes,
        f"offline_bytes_max: must not be below {config.window_bytes}, what one connection may have in flight",
    )
    yield (
        not (config.snapshot_interval_s and config.redis_url),
        "snapshot_interval_s: snapshots are of the engine's own Redis; back up the one of redis_url where it runs (docs/OPERATIONS.md)",
    )
    yield 0 < config.timer_degrade_load <= 1, "timer_degrade_load: a share of the claims, above 0 and at most 1"
    if config.redis_replicas_min:
        yield (
            config.redis_timeout_ms > config.redis_replicas_timeout_ms,
            f"redis_timeout_ms: must be above redis_replicas_timeout_ms ({config.redis_replicas_timeout_ms}), "
            "else waiting for replicas looks like a dead Redis",
        )
        yield (
            bool(config.redis_url),
            "redis_replicas_min: the engine's own Redis has no replicas; give the URL of one that has, or leave it 0",
        )


def _link_rules(config: Config) -> Iterator[SettingRule]:
    yield (
        config.link_timeout_ms > config.link_park_ms,
        "link_timeout_ms: must be above link_park_ms, else every idle link is taken for dead",
    )
    try:
        port_range(config.link_ports)
    except ValueError:
        yield False, f"link_ports: {config.link_ports!r} is not allowed; allowed is FIRST-LAST, two ports from 1024 to 65535"
    tls = {"link_tls_cert": config.link_tls_cert, "link_tls_key": config.link_tls_key, "link_tls_ca": config.link_tls_ca}
    given = [name for name, value in tls.items() if value]
    missing = [name for name, value in tls.items() if not value]
    yield not given or not missing, f"{', '.join(missing)}: needed with {', '.join(given)}; links use TLS with all three, or none"
    yield 0 < config.link_calls_share < 1, "link_calls_share: must be between 0 and 1"
    yield 0 < config.breaker_error_ratio <= 1, "breaker_error_ratio: a share of the requests, above 0 and at most 1"
    pacing_ms = (config.link_pacing_ms, config.link_timer_pacing_ms, config.link_ack_pacing_ms, config.link_ray_pacing_max_ms)
    yield min(pacing_ms) >= 0, "link_pacing_ms and the like: must not be negative"


def _event_rules(config: Config) -> Iterator[SettingRule]:
    yield (
        config.event_looks_max * config.event_poll_ms < config.event_lease_ms,
        "event_lease_ms: must be above event_looks_max times event_poll_ms, else a consumer that waits loses its group",
    )


def apprise_recipients(text: str) -> dict[str, str]:
    """The URLs of the recipients that the operator named, by name. Raises ValueError when malformed."""
    found: dict[str, str] = {}
    for part in text.split():
        name, _, url = part.partition("=")
        if re.fullmatch(r"[a-z0-9_-]{1,64}", name) is None or "://" not in url or name in found:
            raise ValueError("no recipient")
        found[name] = url
    return found
