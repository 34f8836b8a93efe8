"""The limits of a shard, as its parts receive them."""

from __future__ import annotations

from msgspec import Struct

from engine.config import Config
from engine.core.commit.policy_step import DEFAULT_POLICY_LIMITS, PolicyLimits
from engine.core.inbox.inbox import InboxLimits
from engine.core.mailbox.retry import RetryPolicy
from engine.core.model.routing import TIMER_PARTITIONS


def inbox_limits(config: Config) -> InboxLimits | None:
    """What inboxes keep by this configuration; None: there are none."""
    if not config.inbox_max:
        return None
    return InboxLimits(config.inbox_max, config.inbox_ttl_s * 1000, config.inbox_pinned_max, config.offline_max)


class ShardLimits(Struct, frozen=True):
    """The limits of one shard. `engine.config` has the meaning and the reason of each. Times in milliseconds, sizes in bytes."""

    retry: RetryPolicy
    window: int
    window_bytes: int
    deliver_bytes_max: int
    connections_per_user_max: int
    offline_max: int
    recent_ids: int
    hot_messages_max: int
    mailbox_idle_ms: int
    commit_records_max: int
    commit_bytes_max: int
    ack_journal_ms: int
    posts_pending_max: int
    memory_messages_max: int
    adopt_max: int
    topics_per_user_max: int
    shared_bytes_max: int
    memory_bytes_max: int = 512 << 20
    hot_bytes_max: int = 1 << 20
    edge_repeats_ms: int = 8000
    pressure_lag_ms: int = 250
    pressure_calm_ms: int = 1000
    conflate_offline_min: int = 100
    collapse_keys_max: int = 64
    gaps_max: int = 256
    windows_max: int = 16
    windows_close_max: int = 250
    postponed_max: int = 5000
    offline_after_ms: int = 30_000
    suspects_max: int = 200_000
    user_forget_ms: int = 90 * 86_400_000
    policy_limits: PolicyLimits = DEFAULT_POLICY_LIMITS
    history: bool = False  # whether outcomes are recorded
    inbox: InboxLimits | None = None  # None: nothing is kept
    inbox_page_max: int = 100
    inbox_page_bytes_max: int = 1 << 20
    inbox_reads_max: int = 1000
    inbox_unwritten_bytes_max: int = 32 << 20

    @staticmethod
    def wanted(config: Config) -> ShardLimits:
        """Return the limits that the configuration sets."""
        return ShardLimits(
            retry=RetryPolicy(
                config.ack_rtt_initial_ms, config.ack_timeout_factor, config.retry_first_ms, config.retry_cap_ms, config.retry_tries
            ),
            window=config.window,
            window_bytes=config.window_bytes,
            deliver_bytes_max=config.deliver_bytes_max,
            connections_per_user_max=config.connections_per_user_max,
            offline_max=config.offline_max,
            recent_ids=config.recent_ids,
            hot_messages_max=config.hot_messages_max,
            mailbox_idle_ms=config.mailbox_idle_ms,
            commit_records_max=config.commit_records_max,
            commit_bytes_max=config.commit_bytes_max,
            ack_journal_ms=config.ack_journal_ms,
            posts_pending_max=config.posts_pending_max,
            memory_messages_max=config.shard_memory_messages_max,
            adopt_max=config.adopt_max,
            topics_per_user_max=config.topics_per_user_max,
            shared_bytes_max=config.shared_bytes_max,
            memory_bytes_max=config.shard_memory_bytes_max,
            hot_bytes_max=config.hot_bytes_max,
            edge_repeats_ms=config.publish_timeout_ms,
            pressure_lag_ms=config.pressure_lag_ms,
            pressure_calm_ms=config.pressure_calm_ms,
            conflate_offline_min=config.conflate_offline_min,
            collapse_keys_max=config.collapse_keys_max,
            gaps_max=config.gaps_max,
            windows_max=config.windows_max,
            windows_close_max=config.windows_close_max,
            postponed_max=config.timer_claims_max * TIMER_PARTITIONS,
            offline_after_ms=config.offline_after_ms,
            suspects_max=config.suspects_max,
            user_forget_ms=config.user_forget_s * 1000,
            policy_limits=PolicyLimits(config.counted_max, config.decisions_max, config.digest_ms),
            history=bool(config.history_url),
            inbox=inbox_limits(config),
            inbox_page_max=config.inbox_page_max,
            inbox_page_bytes_max=config.inbox_page_bytes_max,
            inbox_reads_max=config.inbox_reads_max,
            inbox_unwritten_bytes_max=config.inbox_unwritten_bytes_max,
        )
