"""Journal entries and pages, read as a shard with all features reads them."""

from __future__ import annotations

from typing import Final

from engine.core.journal import salvage
from engine.core.journal.journal_records import AnyPage
from engine.core.journal.salvage import Salvaged
from engine.core.journal.stored_formats import Layouts
from engine.features.windows.core.aggregation_window import KINDS

LAYOUTS: Final = Layouts(KINDS)

decode_journal: Final = LAYOUTS.decode_journal
decode_record: Final = LAYOUTS.decode_record
decode_page: Final = LAYOUTS.decode_page


def read_page(key: str, blob: bytes) -> AnyPage:
    return salvage.read_page(key, blob, LAYOUTS)


def salvage_journal(entry: bytes) -> Salvaged:
    return salvage.salvage_journal(entry, LAYOUTS)
