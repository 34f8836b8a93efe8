"""Preferences as a JSON document that merge patches change: what the engine's patches are compared with."""

from __future__ import annotations

from typing import Any, Final

DEFAULTS: Final[dict[str, Any]] = {
    "zone": "UTC",
    "locale": "",
    "quiet": [],
    "categories": {},
    "types": {},
    "targets": {},
    "channels": {},
    "quiet_categories": {},
    "mail_digest": None,
}
"""The members of preferences that can be written, for who has chosen nothing."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2, word for word."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merge_patch(target.get(name), value)
    return target
