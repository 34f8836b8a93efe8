"""What a journal group does to the aggregation windows of its users.

    opened --its end is reached--> due --in the next group--> policy --> closed, with or without a message
                                                                     --> kept open: the user has quiet hours (`Extended`)
           --a message of its key arrives first--> closed in that message's group, before the message opens the next window

`WindowStep` is the effect of one group. It works on copies; the mailboxes change when the group is committed (`WindowJudge.apply`).
After a refused group only `WindowCloser.watch` has to be called for its mailboxes.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config import Config
from engine.core.commit.judge import Events
from engine.core.journal.journal_records import StoredMessage
from engine.core.mailbox.judge_state import JudgeRecord
from engine.core.mailbox.mailbox import Mailbox
from engine.core.mailbox.memory import Memory
from engine.core.model.envelope import Envelope
from engine.core.model.message import timer_effect_id
from engine.core.wire.outcomes import Outcome, type_of
from engine.core.wire.records import DUPLICATE, MERGED
from engine.features.policy.core.contact_policy import Decision
from engine.features.policy.core.policy_step import ALONE, DIGEST, Merged, PolicyJudge, PolicyStep, ZoneOf, facts_of, in_digest
from engine.features.windows.core import aggregation
from engine.features.windows.core.aggregation import WindowOutcome, windows_of
from engine.features.windows.core.aggregation_window import Counted, Ended, Extended, Kept, WindowItem, Windows
from engine.features.windows.core.window_closer import WindowCloser


class WindowStep(PolicyStep):
    """The effect of one group on the windows of its mailboxes."""

    def __init__(self, config: Config, zone_of: ZoneOf, records: Events, heads: dict[str, int], now_ms: int) -> None:
        super().__init__(config, zone_of, records, heads, now_ms)
        self._windows: dict[str, Windows] = {}  # as they are once the group is committed

    def _of(self, mailbox: Mailbox) -> Windows:
        windows = self._windows.get(mailbox.key)
        if windows is None:
            stored = windows_of(mailbox)
            windows = self._windows[mailbox.key] = Windows() if stored is None else aggregation.copy(stored)
        return windows

    def at_deadline(self, mailbox: Mailbox) -> None:
        """Close the windows that are due, or extend them."""
        windows = self._of(mailbox)
        for collapse in aggregation.due(windows, self.now_ms):
            self._close(mailbox, windows, collapse)

    def _close(self, mailbox: Mailbox, windows: Windows, collapse: str) -> None:
        sent, ended = aggregation.close(windows, mailbox.key, collapse)
        inbox_only = False
        if sent is not None and (sent.expires_ms <= self.now_ms or not (sent.envelope.retain or mailbox.connections)):
            sent = None
        if sent is not None and (sent.envelope.policy_terms is not None or mailbox.user_state is not None):
            facts = facts_of(sent.envelope)
            verdict = self.summary(mailbox, facts)
            if verdict.decision is Decision.DEFER:
                extended = aggregation.extend(windows, mailbox.key, collapse, verdict.until_ms)
                aggregation.apply(windows, extended)
                self.records.append(extended)
                self.against(mailbox.key, sent.envelope, verdict)
                return
            if verdict.decision is Decision.DELIVER:
                self.delivered(mailbox, facts)
            else:
                self.against(mailbox.key, sent.envelope, verdict)
                inbox_only = verdict.decision is Decision.INBOX
                sent = sent if inbox_only else None
        aggregation.apply(windows, ended)
        self.records.append(ended)
        if sent is not None:
            number, key = self._number(mailbox), mailbox.key
            self.records.append(StoredMessage(key, number, sent.envelope, sent.expires_ms, self.now_ms, inbox_only=inbox_only))

    def _number(self, mailbox: Mailbox) -> int:
        seq = self.heads[mailbox.key] = self.heads.get(mailbox.key, mailbox.head) + 1
        return seq

    def end_due(self, mailbox: Mailbox, envelope: Envelope) -> None:
        windows, collapse = self._of(mailbox), envelope.collapse
        window = windows.open.get(collapse)
        if window is not None and window.closes_ms <= self.now_ms:
            self._close(mailbox, windows, collapse)

    def waits_until(self, mailbox: Mailbox, envelope: Envelope, expires_ms: int) -> int:
        merge = envelope.merge
        if merge is None:
            return 0
        windows = self._windows.get(mailbox.key) or windows_of(mailbox)
        window = None if windows is None else windows.open.get(envelope.collapse)
        if window is not None and window.closes_ms > self.now_ms:
            return window.closes_ms
        if merge.leading or not aggregation.outlasts(envelope, expires_ms, self.now_ms):
            return 0
        if window is None and windows is not None and len(windows.open) >= self._windows_max(windows, envelope):
            return 0
        return self.now_ms + merge.window_ms

    def has_digest(self, mailbox: Mailbox, envelope: Envelope, expires_ms: int) -> bool:
        return self.waits_until(mailbox, in_digest(envelope, self.config.digest_ms), expires_ms) > 0

    def _windows_max(self, windows: Windows, envelope: Envelope) -> int:
        """So many may be open at once; a digest is one more, whether it was opened before or is opened now."""
        return self.config.windows_max + (envelope.collapse == DIGEST or DIGEST in windows.open)

    def offer(self, mailbox: Mailbox, envelope: Envelope, expires_ms: int, timer: str) -> Merged:
        """Add a message to its window. When it is delivered as well, the caller assigns the mailbox's next number."""
        self.end_due(mailbox, envelope)
        windows, collapse = self._of(mailbox), envelope.collapse
        item = WindowItem(envelope, expires_ms, self.now_ms, timer)
        seq = self.heads.get(mailbox.key, mailbox.head) + 1
        outcome, counted = aggregation.offer(windows, mailbox.key, item, self._windows_max(windows, envelope), seq)
        if counted is not None:
            aggregation.apply(windows, counted)
            self.records.append(counted)
        if outcome in (WindowOutcome.DELIVER, WindowOutcome.UNMERGED):
            return ALONE
        window = windows.open[collapse]
        if outcome is WindowOutcome.DUPLICATE:
            return Merged(DUPLICATE, seq=window.first_seq if window.envelope.id == envelope.id else 0)
        return Merged(MERGED, until_ms=window.closes_ms)


class WindowJudge(PolicyJudge):
    """Applies policy and windows to the messages of one shard."""

    def __init__(self, config: Config, zone_of: ZoneOf, mailboxes: Mapping[str, Mailbox], memory: Memory) -> None:
        super().__init__(config, zone_of)
        self.deadlines = WindowCloser(config, mailboxes, memory)
        self._memory = memory
        self._merged = self._closed = 0  # since the start

    def step(self, records: Events, heads: dict[str, int], now_ms: int) -> WindowStep:
        return WindowStep(self.config, self.zone_of, records, heads, now_ms)

    def committed(self, record: JudgeRecord) -> None:
        if isinstance(record, Counted):
            self._merged += not record.seq
        elif isinstance(record, Ended):
            self._closed += 1

    def figures(self) -> Mapping[str, int]:
        return {"windows": self._memory.held, "merged": self._merged, "windows_closed": self._closed}

    def outcome(self, record: JudgeRecord) -> Outcome | None:
        if not isinstance(record, Counted):
            return None
        envelope = record.item.envelope
        if record.seq or envelope.collapse == DIGEST:  # accepted, or digested by a decision
            return None
        reason = f"window: {envelope.collapse}"
        return Outcome(record.key, record.item.at_ms, "merged", envelope.id, kind=type_of(envelope.body), reason=reason)

    def apply(self, mailbox: Mailbox, record: JudgeRecord) -> None:
        assert isinstance(record, Counted | Ended | Extended | Kept), "of this judge"
        if isinstance(record, Kept):
            # Also over a page with a higher number: it is older where the user was erased or forgotten since, and numbers began again.
            mailbox.judge_state = record.windows
            return
        windows = windows_of(mailbox)
        if windows is None:
            windows = mailbox.judge_state = Windows()
        if aggregation.apply(windows, record) and isinstance(record, Counted) and not record.seq:
            # Without a number it is not remembered by `apply_stored`; the publisher's quick retry must still be recognised here.
            item = record.item
            mailbox.remember(item.envelope.id, 0, item.envelope.digest, self.config.recent_ids)
            if item.timer:
                mailbox.remember(timer_effect_id(item.timer), 0, item.envelope.digest, self.config.recent_ids)
                if mailbox.user_state is not None:
                    mailbox.user_state.took_effect(item.timer)
