"""Dead letters on a shard: refused messages go to the stream of their tenant."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.model.members import message_bytes_max
from engine.core.shard.mailbox_store import DeadLetter
from engine.features.dead_letters.store import write_dead_letters
from engine.store.shard_feature import ShardFeature, ShardPorts


def on_shard(ports: ShardPorts) -> ShardFeature:
    """The feature on a shard."""
    config = ports.config
    letter_bytes_max = message_bytes_max(config)

    async def store(letters: Sequence[DeadLetter]) -> None:
        await write_dead_letters(ports.first, letters, config.dead_letters_max, config.dead_letters_bytes_max, letter_bytes_max)

    return ShardFeature(store_dead_letters=store)
