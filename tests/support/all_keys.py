"""Every key there can be."""

from __future__ import annotations

from engine.store import keys


def all_keys() -> list[str]:
    """Every key there can be of two users, tenants, slots, shards and partitions."""
    found = [
        keys.slots_key(),
        keys.meta_key(),
        keys.epoch_key(),
        keys.replication_key(),
        keys.broadcast_log_key(),
        keys.broadcast_state_key(),
        keys.broadcast_parts_key(),
        keys.broadcast_dropped_key(),
        keys.broadcast_lost_key(),
        keys.broadcast_positions_key("t"),
        keys.session_stream_key(),
        keys.subscribers_prefix(),
        keys.ids_state_key(),
        keys.ids_prefix(),
        keys.lease_key(),
        keys.link_key_key(),
        keys.revocation_log_key(),
        keys.revocation_entries_key(),
        keys.revocation_expiries_key(),
        keys.revocation_state_key(),
        keys.revocation_tenants_key(),
        keys.action_targets_key(),
        keys.revocation_useless_key(),
        keys.outcome_stream_key(),
        keys.outcome_state_key(),
        keys.load_history_key(),
        keys.unsubscribe_key_key(),
        keys.push_key_key(),
        keys.rules_state_key(),
        keys.rules_texts_key(),
        keys.rules_tenants_key(),
        keys.recorded_events_key(),
        keys.audit_key(),
        keys.ray_state_key(),
        keys.ray_told_key(),
        keys.ray_running_key(),
        keys.ray_deaths_key(),
        keys.ray_unhealthy_key(),
        keys.questions_due_key(),
        keys.caught_mails_key(),
        keys.growing_due_key(),
        keys.growing_tenants_key(),
    ]
    by_number = (
        *(keys.slot_epoch_key, keys.slot_mark_key, keys.page_key, keys.windows_key, keys.online_key, keys.looks_key, keys.floor_key),
        *(keys.held_key, keys.topics_key, keys.offline_prefix),
        *(
            keys.journal_key,
            keys.journal_head_key,
            keys.journal_quarantine_key,
            keys.handed_events_key,
        ),
        *(keys.timer_due_key, keys.timer_key, keys.timer_user_prefix, keys.timer_collapse_key),
        *(
            keys.timer_cancelled_key,
            keys.timer_quarantine_key,
            keys.timer_claimed_key,
            keys.timer_young_key,
            keys.timer_owner_key,
            keys.timer_epoch_key,
        ),
        keys.timer_unpaged_key,
    )
    found += [key_of(number) for key_of in by_number for number in (1, 11)]
    by_name = (keys.offline_key, keys.signals_key, keys.signals_writer_key, keys.dead_letter_key, keys.tenants_key, keys.action_stream_key)
    by_name = (
        *by_name,
        keys.trimmed_mark_key,
        keys.event_groups_key,
        keys.questions_key,
        keys.answers_key,
        keys.channels_key,
        keys.growing_key,
    )
    by_name = (
        *by_name,
        keys.channels_asked_key,
        keys.channels_erased_key,
        keys.channels_told_key,
        keys.rules_state_key,
        keys.rules_texts_key,
    )
    found += [key_of(name) for key_of in by_name for name in ("t", "t:u")]
    return [
        *found,
        keys.idempotency_key("t:u", "1"),
        keys.votes_key("t:u", "1"),
        keys.growth_key("t:u", "1"),
        keys.event_arrival_key("t", "c"),
    ]
