"""Which simulated world shows a mutation of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from tests.sim.faults import CLASSES
from tests.sim.mutations import MUTATIONS
from tests.sim.world import STORAGE_FAULTS, Options, World

SEEDS_MAX: Final = 1000

KEPT: Final = 3
"""Seeds of each mutation that are written down, where so many were found."""

QUIET_S: Final = 20.0
"""How long a mutated world may take, once healed, until nothing is left over, a third of what others may. Of 250 without mutation the last
was quiet after 15 s; where something never comes to an end, most of the time goes into waiting for it."""

SEEN_AT: Final[dict[str, tuple[int, ...]]] = {
    "streams_are_trimmed_above_what_is_handled": (2, 3),
    "what_is_for_the_inbox_only_is_sent_after_a_restart": (614,),
    "the_journal_takes_writes_of_an_old_epoch": (10, 25, 27),
    "a_refused_group_is_not_rolled_back": (7, 8, 29),
    "a_refused_group_is_answered_before_its_rollback": (55, 252, 392),
    "a_late_copy_of_a_rolled_back_group_applies": (44, 29, 20),
    "the_journal_is_trimmed_one_group_too_far": (22, 27, 36),
    "a_failed_checkpoint_counts_as_written": (8,),
    "replay_forgets_acknowledgements": (20, 71, 86),
    "replay_forgets_ids": (14, 29),
    "cold_numbers_below_a_read_are_forgotten": (273, 827, 872),
    "a_retry_timer_is_lost": (186, 104),
    "a_link_applies_what_arrives_out_of_order": (41, 84, 132),
    "a_timer_is_removed_before_it_is_confirmed": (4, 8, 12),
    "a_timer_s_effect_is_not_remembered": (14, 29),
    "a_cancel_is_confirmed_after_the_timer_was_handed_out": (148, 120),
    "a_due_timer_is_not_handed_out_again": (8,),
    "a_successor_does_not_know_how_far_timers_were_claimed": (46,),
    "timers_are_handed_out_before_they_are_claimed": (46,),
    "a_window_tells_one_message_too_few": (6,),
    "a_restart_ends_subscriptions": (16, 29),
    "who_was_slow_gets_no_more_broadcasts": (14,),
    "a_repeat_of_the_edge_is_refused_as_if_it_came_first": (371, 263),
    "a_message_forgets_how_many_it_stands_for": (17,),
    "what_is_delivered_does_not_count": (5,),
    "what_is_put_off_is_not_scheduled": (30,),
    "a_profile_is_not_replayed": (162,),
    "a_timer_that_is_to_come_again_counts_as_done": (14,),
    "a_refusal_is_confirmed_before_the_dead_letters_have_it": (35, 158, 263),
    "pages_take_writes_of_an_old_epoch": (60, 188, 194),
    "tries_are_not_counted": (13,),
    "a_retry_counts_again_in_its_window": (22, 14),
    "replay_counts_again_what_a_page_has": (12, 22, 54),
    "a_page_forgets_the_windows": (2,),
    "a_window_whose_mailbox_left_memory_stays_open": (24, 45, 79),
    "a_mailbox_leaves_memory_while_something_waits_for_it": (24, 180, 344),
    "a_restart_begins_the_broadcast_log_again": (14,),
    "a_topic_reaches_everybody": (2,),
    "what_was_held_under_pressure_is_never_sent": (818, 812, 154),
    "a_repeated_turn_counts_its_timers_again": (9, 10),
    "a_user_with_timers_is_counted_again_with_the_page": (10, 12),
    "posts_wait_without_a_limit": (336, 168, 249),
    "timers_take_writes_of_an_old_epoch": (54, 71, 74),
    "an_early_copy_settles_the_gaps_below_it": (334, 197, 133),
    "gaps_are_not_announced": (2,),
    "a_new_link_session_does_not_announce_connections_again": (13, 11, 12),
    "what_is_refused_is_taken_all_the_same": (39, 30),
    "lost_broadcasts_are_not_announced": (103,),
    "a_restart_does_not_know_what_has_left_the_broadcast_log": (133,),
    "a_controller_that_is_cut_off_replaces_the_others": (37,),
    "a_controller_that_was_replaced_goes_on": (191,),
    "a_link_waits_for_its_port_instead_of_calling_through_ray": (228, 222),
    "a_shard_without_writes_does_not_notice_its_successor": (93, 116),
    "an_edge_trusts_a_session_that_its_shard_has_ended": (319,),
    "what_was_under_way_when_a_link_broke_is_sent_again_on_the_next_session": (64, 115, 360),
    "a_scheduler_keeps_its_partitions_when_the_slot_map_moves_them": (7, 6, 4),
    "who_gets_partitions_does_not_read_their_timers": (4, 43),
    "who_gets_partitions_does_not_know_how_far_their_timers_were_claimed": (778,),
    "slots_go_while_something_of_them_is_under_way": (304, 131, 362),
    "a_slot_goes_without_its_last_pages": (17, 32, 63),
    "edges_do_not_hear_that_a_slot_goes": (128,),
    "a_shard_leaves_before_its_slots_have": (6,),
    "who_gets_slots_serves_them_under_their_last_epoch": (2, 3, 6),
    "a_shard_that_gets_slots_sets_their_cursors_back": (42,),
    "what_was_wanted_without_an_answer_is_forgotten": (438, 75, 234),
    "a_mark_is_not_replayed": (1, 3),
    "counts_of_broadcasts_are_not_sent": (11, 87, 116),
    "the_successor_of_a_controller_forgets_an_upgrade": (142, 131, 6),
    "an_upgrade_names_the_processes_of_the_last_round": (522, 85, 458),
    "a_turn_that_got_no_answer_may_apply_after_the_next": (111208527,),
    "a_process_is_told_to_end_again_and_again": (29, 91),
    "a_shard_is_never_emptied_for_its_successor": (6,),
    "publishers_are_answered_before_the_commit": (3, 4, 5),
    "an_acknowledgement_is_forgotten": (6, 8, 12),
    "a_timer_fires_early": (34, 20, 29),
    "a_scheduler_keeps_its_timers_in_the_first_store": (36, 74, 100),
    "a_shard_takes_the_outage_of_the_first_store_for_its_own": (100, 301, 844),
}
"""Seeds that showed a mutation when this was written (`python -m tests.sim --mutations` prints them anew); all others are seen at once.
The seed whose world takes least comes first.
A change of the engine may change what happens in a world: then the next one is tried, and where none is left, the test fails."""

ALONE: Final = {
    # The old one has to write once more, and nothing else to have ended it before.
    "the_journal_takes_writes_of_an_old_epoch": frozenset({"split", "zombie"}),
    # Storage has to take what it seemed to refuse, and the shard to die before it is rolled back.
    "a_refused_group_is_answered_before_its_rollback": frozenset({"crash-shard", "storage-refuse", "storage-stuck", "storage-cut"}),
    # A successor, a confirmed cancel and the old one's late timer have to meet: in 1 200 worlds once, if other faults strike as well.
    "a_successor_does_not_know_how_far_timers_were_claimed": frozenset({"split"}),
    "timers_are_handed_out_before_they_are_claimed": frozenset({"split"}),
    # Timers that fired are known by their effect: the cancel has to come before that is journalled.
    "who_gets_partitions_does_not_know_how_far_their_timers_were_claimed": frozenset({"scale-schedulers", "partition", "stall"}),
    # It has to lose its epoch while no edge sends it anything.
    "a_shard_without_writes_does_not_notice_its_successor": frozenset({"cut-host", "split", "zombie"}),
    # Commits have to be slow, so that a restart meets it in the journal while no page has it.
    "what_is_for_the_inbox_only_is_sent_after_a_restart": frozenset({"crash-shard", "storage-slow", "storage-stuck"}),
    # Where much else breaks links and ends sessions, clients come back before they miss anything.
    "an_edge_trusts_a_session_that_its_shard_has_ended": frozenset({"partition", "stall", "crash-shard"}),
    "what_was_under_way_when_a_link_broke_is_sent_again_on_the_next_session": frozenset({"partition", "call-lost", "call-hangs", "stall"}),
    # Elsewhere the connection that comes back is soon cut again, or its session ends.
    "a_link_that_fell_back_to_ray_stays_there": frozenset({"partition"}),
    # A commit has to take long.
    "slots_go_while_something_of_them_is_under_way": frozenset({"move", "storage-slow", "storage-stuck"}),
    "a_slot_goes_without_its_last_pages": frozenset({"move"}),
    # Nothing else may refuse anything.
    "a_shard_takes_the_outage_of_the_first_store_for_its_own": STORAGE_FAULTS,
    "edges_do_not_hear_that_a_slot_goes": frozenset({"move"}),
    "a_shard_that_gets_slots_sets_their_cursors_back": frozenset({"move", "scale-shards", "storage-slow"}),
}
"""What is looked for in worlds where only these faults strike."""


def options_of(name: str, seed: int) -> Options:
    """The world in which a mutation is looked for."""
    return Options(seed, enabled=ALONE.get(name, frozenset(CLASSES)), quiet_s=QUIET_S)


def failure_at(name: str, seed: int) -> str:
    """What the mutated engine did wrong in this world; empty when nothing was seen."""
    with MUTATIONS[name]():
        return World(options_of(name, seed)).run().failure


def failures(name: str, seeds: Iterable[int] = range(1, SEEDS_MAX + 1)) -> Iterator[tuple[int, str]]:
    """The seeds that show it, and what was seen. The next one may take minutes."""
    return ((seed, failure) for seed in seeds if (failure := failure_at(name, seed)))


def first_failures(name: str) -> list[tuple[int, str]]:
    """Of the lowest KEPT seeds."""
    return list(islice(failures(name), KEPT))
