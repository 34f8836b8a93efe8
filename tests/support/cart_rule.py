"""A rule of many tests: whoever left a cart is reminded an hour later, unless it was paid."""

from __future__ import annotations


def cart_rule(*lines: str) -> str:
    """The rule as text of a rules file, with these lines at its end: what is sent, and how a payment stops it."""
    return "\n".join(
        (
            "[[rule]]",
            'name = "cart"',
            'event = "cart.abandoned"',
            'recipients = ["user"]',
            'type = "touch.cart"',
            'delay = "1h"',
            *lines,
            "",
        )
    )
